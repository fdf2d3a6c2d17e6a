"""Download of one file from a server that drops, rejects, changes or truncates it."""

from pathlib import Path

import pytest
from requests import Session

from common.errors import PipelineError, UsageError
from data.fetch.download import check_address, download
from tests.data.fetch.conftest import POLICY
from tests.support.file_server import FileServer, Trouble

PATH = "/a.tar"
CONTENT = bytes(range(256)) * 4000  # a megabyte
OTHER = CONTENT[::-1]


@pytest.fixture(autouse=True)
def served(files: FileServer) -> None:
    files.files[PATH] = CONTENT


def fetch(files: FileServer, folder: Path, query: str = "") -> bytes:
    """Download PATH, with up to four tries without progress, and return the content."""
    target = folder / "a.tar"
    with Session() as session:
        download(session, f"{files.url}{PATH}{query}", target, policy=POLICY)
    assert [path.name for path in folder.iterdir()] == ["a.tar"]
    return target.read_bytes()


def failure(files: FileServer, folder: Path, query: str = "") -> str:
    with pytest.raises(PipelineError) as caught:
        fetch(files, folder, query)
    assert not (folder / "a.tar").exists()
    return str(caught.value)


def test_file_that_breaks_off_often_resumes(files: FileServer, tmp_path: Path) -> None:
    cuts = [Trouble(cut_after=150_000)]
    for _ in range(5):  # more than there are tries: each of them brought something
        cuts += [Trouble(), Trouble(cut_after=150_000)]
    files.will(PATH, *cuts)
    assert fetch(files, tmp_path) == CONTENT
    assert files.gets(PATH)[-1].range is not None


@pytest.mark.parametrize("plain_copy", [False, True])
def test_two_versions_of_a_file_are_never_mixed(
    files: FileServer, tmp_path: Path, plain_copy: bool
) -> None:
    first = Trouble(cut_after=300_000, plain_copy=plain_copy)
    files.will(PATH, first, Trouble(replace_with=OTHER, plain_copy=plain_copy))
    assert fetch(files, tmp_path) == OTHER


@pytest.mark.parametrize(
    "trouble",
    [Trouble(ignore_range=True), Trouble(replace_with=OTHER), Trouble(ask_less=1000)],
)
def test_wrong_rest_restarts_the_download(
    files: FileServer, tmp_path: Path, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    files.will(PATH, Trouble(cut_after=300_000), Trouble(), trouble)
    assert fetch(files, tmp_path) == (trouble.replace_with or CONTENT)
    assert "starting again" in caplog.text


def test_truncated_body_is_not_accepted(
    files: FileServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A resumed download sends two requests per try.
    files.will(PATH, *[Trouble(cut_after=10)] * 7)
    assert "gave up after 4 tries" in failure(files, tmp_path)
    assert "was dropped; next try in" in caplog.text
    assert fetch(files, tmp_path) == CONTENT


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (503, 4)])
def test_refusal_is_one_line_without_the_signature(
    files: FileServer, tmp_path: Path, status: int, tries: int
) -> None:
    files.will(PATH, *[Trouble(status)] * tries)
    line = failure(files, tmp_path, "?signature=planted")
    assert f"{PATH}: HTTP {status}; " in line and "planted" not in line
    assert len(files.gets(PATH)) == tries


def test_endless_file_is_refused(
    files: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.fetch.download._MAX_BYTES", 100_000)
    assert "has over 100000 bytes, more than any that is expected" in failure(files, tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_full_disk_is_one_line_that_names_the_file(files: FileServer, tmp_path: Path) -> None:
    files.will(PATH, Trouble(cut_after=100_000), *[Trouble(), Trouble(cut_after=0)] * 3)
    failure(files, tmp_path)
    (part,) = tmp_path.iterdir()
    part.unlink()
    part.symlink_to("/dev/full")
    with pytest.raises(PipelineError, match=r"a\.tar\.part-\w+: cannot be written: No space left"):
        fetch(files, tmp_path)


def test_redirect_to_plain_http_is_refused(files: FileServer, tmp_path: Path) -> None:
    files.files["/there"] = CONTENT
    files.will(PATH, Trouble(302, {"Location": "/there"}))
    assert fetch(files, tmp_path) == CONTENT
    (tmp_path / "a.tar").unlink()
    other = files.url.replace("127.0.0.1", "0.0.0.0")  # this machine too, but no loopback address
    files.will(PATH, Trouble(302, {"Location": f"{other}/there"}))
    assert "https://" in failure(files, tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "http://download.tensorflow.org/x",
        "http://127.0.0.1.example/x",
        "file:///etc/passwd",
        "https://name:planted-key@host/x",
        "https://host/x?token=planted-key",
        "https:///x",
    ],
)
def test_only_https_or_loopback_is_allowed(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_address(url)
    assert "planted-key" not in str(caught.value)
    for allowed in ("https://host/x/", "http://127.0.0.1:80/x", "http://[::1]/x"):
        check_address(allowed)
