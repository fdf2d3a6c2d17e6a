"""One file from a server that breaks off, refuses, changes its mind or lies."""

import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import numpy as np
import pytest
from requests import Session

from common.errors import PipelineError, UsageError
from common.retry import RetryableError, RetryPolicy, retry
from data.fetch.download import PartFile, check_address, download, remote_size
from tests.data.fetch.conftest import Notes
from tests.data.fetch.file_server import FileServer, Trouble

PATH = "/v0/a.tar"
CONTENT = np.random.default_rng(0).bytes(1_000_000)
OTHER = np.random.default_rng(1).bytes(700_000)


def fetch(files: FileServer, folder: Path, notes: Notes, content: bytes | None = CONTENT) -> bytes:
    """Download PATH with tries for four failures in a row; return what arrived."""
    if content is not None and PATH not in files.files:
        files.files[PATH] = content
    target = folder / "a.tar"
    policy = RetryPolicy(attempts=4, sleep=notes.waited.append)
    with Session() as session:
        download(
            session,
            files.url + PATH,
            target,
            policy=policy,
            progress=lambda what, done, total: None,
            say=notes.said.append,
        )
    assert [path.name for path in folder.iterdir()] == ["a.tar"]
    return target.read_bytes()


def failure(files: FileServer, folder: Path, notes: Notes) -> str:
    with pytest.raises(PipelineError) as caught:
        fetch(files, folder, notes)
    assert not (folder / "a.tar").exists()
    line = str(caught.value)
    assert "\n" not in line
    assert files.url + PATH in line
    return line


def test_a_dropped_connection_goes_on_where_it_broke(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    files.will(PATH, Trouble(cut_after=300_000), Trouble(cut_after=400_000))
    assert fetch(files, tmp_path, notes) == CONTENT
    first, second, third = files.gets(PATH)
    assert first.range is None
    assert 200_000 <= int(second.range.removeprefix("bytes=").removesuffix("-")) <= 300_000
    assert 500_000 <= int(third.range.removeprefix("bytes=").removesuffix("-")) <= 700_000
    assert second.headers["If-Range"].startswith('"')
    assert len(notes.said) == 2
    assert notes.waited == [1.0, 1.0]  # each attempt brought something


def test_what_a_killed_process_left_is_gone_on_with(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    files.will(PATH, Trouble(cut_after=500_000), Trouble(403))
    failure(files, tmp_path, notes)
    held = (tmp_path / "a.tar.part").stat().st_size
    assert 0 < held <= 500_000
    assert fetch(files, tmp_path, notes) == CONTENT
    assert files.gets(PATH)[-1].range == f"bytes={held}-"


def test_a_download_killed_just_before_its_renaming_needs_no_byte_more(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    note = {"url": files.url + PATH, "validator": '"x"', "total": len(CONTENT)}
    (tmp_path / "a.tar.part").write_bytes(CONTENT)
    (tmp_path / "a.tar.part.json").write_text(json.dumps(note))
    assert fetch(files, tmp_path, notes) == CONTENT
    assert not files.asked


def test_a_file_that_is_there_is_not_asked_for(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    (tmp_path / "a.tar").write_bytes(b"there")
    assert fetch(files, tmp_path, notes) == b"there"
    assert not files.asked


@pytest.mark.parametrize("plain_copy", [False, True])
def test_a_file_that_changes_between_attempts_is_never_mixed(
    files: FileServer, tmp_path: Path, notes: Notes, plain_copy: bool
) -> None:
    files.will(
        PATH,
        Trouble(cut_after=300_000, plain_copy=plain_copy),
        Trouble(replace_with=OTHER),
    )
    assert fetch(files, tmp_path, notes) == OTHER


def test_a_changed_file_sent_as_a_range_all_the_same_starts_anew(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    note = {"url": files.url + PATH, "validator": "Thu, 01 Jan 1970 00:00:00 GMT", "total": 900_000}
    (tmp_path / "a.tar.part").write_bytes(OTHER[:100_000])
    (tmp_path / "a.tar.part.json").write_text(json.dumps(note))
    assert fetch(files, tmp_path, notes) == CONTENT
    assert any("has changed" in line for line in notes.said)


def test_a_file_that_has_become_shorter_starts_anew(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    files.will(PATH, Trouble(cut_after=900_000), Trouble(416))
    assert fetch(files, tmp_path, notes) == CONTENT
    assert files.gets(PATH)[-1].range is None


@pytest.mark.parametrize("note", ["", "[]", "{}", '{"url": "elsewhere", "validator": "x"}'])
def test_a_part_without_a_proper_note_is_not_trusted(
    files: FileServer, tmp_path: Path, notes: Notes, note: str
) -> None:
    (tmp_path / "a.tar.part").write_bytes(b"x" * 1000)
    (tmp_path / "a.tar.part.json").write_text(note)
    assert fetch(files, tmp_path, notes) == CONTENT


def test_a_server_that_ignores_ranges_starts_cleanly(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    files.will(PATH, Trouble(cut_after=300_000), Trouble(ignore_range=True))
    assert fetch(files, tmp_path, notes) == CONTENT
    assert files.gets(PATH)[1].range is not None


def test_a_server_that_sends_less_than_asked_is_asked_again(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    files.will(PATH, Trouble(cut_after=300_000), Trouble(ask_less=1000))
    assert fetch(files, tmp_path, notes) == CONTENT
    assert len(files.gets(PATH)) == 3


def test_a_truncated_body_is_never_taken_for_the_file(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    files.will(PATH, *[Trouble(cut_after=10)] * 4)
    assert "gave up after 4 tries" in failure(files, tmp_path, notes)
    assert notes.waited == [1.0, 2.0, 4.0]
    assert fetch(files, tmp_path, notes) == CONTENT


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_server_that_fails_twice_is_asked_a_third_time(
    files: FileServer, tmp_path: Path, notes: Notes, status: int
) -> None:
    files.will(PATH, Trouble(status), Trouble(status))
    assert fetch(files, tmp_path, notes) == CONTENT
    assert notes.waited == [1.0, 2.0]
    assert f"HTTP {status}; next try in 1 s" in notes.said[0]


@pytest.mark.parametrize(("asked", "waited"), [("7", 7.0), ("100000", 300.0), ("soon", 1.0)])
def test_the_wait_a_server_asks_for_is_kept_up_to_a_limit(
    files: FileServer, tmp_path: Path, notes: Notes, asked: str, waited: float
) -> None:
    files.will(PATH, Trouble(429, {"Retry-After": asked}))
    assert fetch(files, tmp_path, notes) == CONTENT
    assert notes.waited == [waited]


def test_the_wait_may_be_a_date(files: FileServer, tmp_path: Path, notes: Notes) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    files.will(PATH, Trouble(503, {"Retry-After": date}))
    fetch(files, tmp_path, notes)
    assert 80 < notes.waited[0] <= 100


@pytest.mark.parametrize(
    ("status", "expected"), [(403, "does not give it out"), (404, "no such file"), (418, "refuses")]
)
def test_a_refusal_is_one_line_at_once(
    files: FileServer, tmp_path: Path, notes: Notes, status: int, expected: str
) -> None:
    files.will(PATH, Trouble(status))
    line = failure(files, tmp_path, notes)
    assert f"HTTP {status}" in line
    assert expected in line
    assert notes.waited == []


def test_nobody_listening_is_said_after_some_tries(tmp_path: Path, notes: Notes) -> None:
    policy = RetryPolicy(attempts=2, sleep=notes.waited.append)
    with Session() as session, pytest.raises(PipelineError, match="connection refused; gave up"):
        remote_size(session, "http://127.0.0.1:9/a.tar", policy=policy, say=notes.said.append)


def test_a_stalled_server_is_not_waited_for_for_ever(
    files: FileServer, tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.fetch.download._TIMEOUT_S", (0.2, 0.2))
    monkeypatch.setattr(files, "next_trouble", lambda method, path: time.sleep(1) or Trouble(404))
    assert "did not answer in time" in failure(files, tmp_path, notes)


def test_a_full_disk_is_one_line_that_names_the_file(
    files: FileServer, tmp_path: Path, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartFile, "begin", lambda part, _: part.path.symlink_to("/dev/full"))
    with pytest.raises(PipelineError, match=r"a\.tar\.part: cannot be written: No space left"):
        fetch(files, tmp_path, notes)


def test_a_redirect_to_an_open_line_is_refused(
    files: FileServer, tmp_path: Path, notes: Notes
) -> None:
    files.files["/there"] = CONTENT
    files.will(PATH, Trouble(302, {"Location": "/there"}))
    assert fetch(files, tmp_path, notes) == CONTENT
    (tmp_path / "a.tar").unlink()
    other = files.url.replace("127.0.0.1", "0.0.0.0")  # this machine too, but no loopback address
    files.will(PATH, Trouble(302, {"Location": f"{other}/there"}))
    with pytest.raises(UsageError, match="https://"):
        fetch(files, tmp_path, notes)


@pytest.mark.parametrize(
    "url",
    [
        "http://download.tensorflow.org/x",
        "http://127.0.0.1.example/x",
        "ftp://127.0.0.1/x",
        "file:///etc/passwd",
        "https://name:planted-key@host/x",
        "https://host/x?token=planted-key",
        "https:///x",
    ],
)
def test_only_https_or_loopback_is_allowed_and_no_secret_is_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_address(url)
    assert "planted-key" not in str(caught.value)
    for allowed in ("https://host/x/", "http://127.0.0.1:80/x", "http://[::1]/x"):
        check_address(allowed)


def test_trying_that_brings_nothing_new_ends() -> None:
    held = iter([0, 10, 5, 10, 10, 10, 10])
    calls = []

    def attempt() -> None:
        calls.append(1)
        raise RetryableError("no luck")

    policy = RetryPolicy(attempts=3, sleep=lambda s: None)
    with pytest.raises(PipelineError, match="x: no luck; gave up after 3 tries"):
        retry(attempt, what="x", policy=policy, say=lambda line: None, gained=lambda: next(held))
    assert len(calls) == 3  # the first of them brought ten bytes, the others no more than that


def test_waits_double_up_to_the_longest() -> None:
    policy = RetryPolicy()
    assert [policy.wait_s(n, None) for n in (1, 2, 3, 7, 40)] == [1, 2, 4, 60, 60]
