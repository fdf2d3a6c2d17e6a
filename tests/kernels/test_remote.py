"""The real client pushes a kernel to our server and asks how it fares; its output comes whole."""

import json
import re
from pathlib import Path

import pytest

from common.errors import UsageError
from common.progress import watched_by
from kernels.build import METADATA_FILE, build
from kernels.remote import (
    KernelOutput,
    KernelStatus,
    KernelVersion,
    fetch_output,
    push,
    status,
)
from tests.data.fetch.conftest import POLICY
from tests.kernels.conftest import contents
from tests.support.command_line import call
from tests.support.fake_kaggle import KEY, SIGNATURE, USERNAME, Answer, FakeKaggle, failure_of
from tests.support.file_server import FileServer, Trouble

SLUG = "fast-or-slow-cpu"
ID = f"{USERNAME}/{SLUG}"
FILES = {
    "submission.csv": b"ID,TopConfigs\n" * 9000,
    "run/report.json.part1": b"a file of the kernel's own",
    "run/report.json": b"{}",
    "run/models/tile-xla/a-seed0/DONE": b"",
    "run/models/tile-xla/a-seed0/model.safetensors": bytes(range(256)) * 2000,
}
LARGE = "/run/models/tile-xla/a-seed0/model.safetensors"


@pytest.fixture
def built(project: Path, fake_kaggle: FakeKaggle, tmp_path: Path) -> Path:
    return build("cpu", {"seed": 0}, tmp_path / "out", root=project)


def change_metadata(built: Path, **fields: object) -> None:
    metadata = built.parent / METADATA_FILE
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **fields}))


def test_push_sends_source_and_metadata_with_the_owner(
    fake_kaggle: FakeKaggle, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_kaggle.kernels[ID] = 2
    change_metadata(built, dataset_sources=["a/wheels"], docker_image=None)
    assert push(built.parent) == KernelVersion(ID, 3)
    (call,) = fake_kaggle.calls("SaveKernel")
    assert call.path == "/api/v1/kernels.KernelsApiService/SaveKernel"
    sent = call.json
    assert sent.pop("text") == built.read_text()
    assert (sent["slug"], sent["newTitle"]) == (ID, "Fast or slow cpu")
    assert sent["competitionDataSources"] == ["predict-ai-model-runtime"]
    assert sent["datasetDataSources"] == ["a/wheels"]
    assert (sent["isPrivate"], sent["enableGpu"], sent["enableInternet"]) == (True, True, False)
    assert capsys.readouterr() == ("", "")


def test_endless_list_of_files_is_given_up(
    kaggle: FakeKaggle, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.remote._MAX_PAGES", 9)
    pages = [Answer(body={"nextPageToken": "1"})] * 20
    kaggle.will_answer("ListKernelSessionOutput", *pages)
    assert f"kernel {ID}: has over 1800 files; nothing was fetched" in failure(out)
    assert len(kaggle.calls("ListKernelSessionOutput")) == 9
    assert not out.exists()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": "Maximum batch GPU\nsession count"}, "start it now: Maximum batch GPU session"),
        ({"error": "Invalid\nslug"}, "refused it: Invalid slug"),
        (
            {"versionNumber": 4, "invalidDatasetSources": ["a/b-wheels", "a/c"]},
            "version 4 runs without dataset sources a/b-wheels, a/c",
        ),
    ],
)
def test_refusal_in_the_answer_is_an_error(
    fake_kaggle: FakeKaggle, built: Path, body: dict[str, object], expected: str
) -> None:
    fake_kaggle.will_answer("SaveKernel", Answer(body=body))
    line = failure_of(lambda: push(built.parent))
    assert expected in line
    assert ID in line
    assert len(fake_kaggle.calls("GetKernel")) == 1  # no doubt: it was refused


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"title": ""}, "key 'title': expected at least 1 character"),
        ({"code_file": "gone.py"}, "gone.py: no such file"),
        ({"is_public": True}, "key 'is_public': expected no such key"),
        ({"kernel_type": "app"}, "key 'kernel_type': expected 'script'"),
    ],
)
def test_wrong_metadata_is_refused_before_the_push(
    fake_kaggle: FakeKaggle, built: Path, fields: dict[str, object], expected: str
) -> None:
    change_metadata(built, **fields)
    line = failure_of(lambda: push(built.parent))
    assert expected in line
    assert "may have started" not in line
    never = failure_of(lambda: push(built.parent / "none"))
    assert never == f"{built.parent}/none: no such folder; `kernel build` writes it"
    assert not fake_kaggle.calls("SaveKernel")


@pytest.mark.parametrize("name", ["../home/kaggle.json", "home/kaggle.json", "..", ".env", "/{}"])
def test_file_outside_the_folder_is_never_pushed(
    fake_kaggle: FakeKaggle, built: Path, name: str
) -> None:
    for home in (built.parent.parent / "home", built.parent / "home"):
        home.mkdir()
        (home / "kaggle.json").write_text("private")
    (built.parent / ".env").write_text("private")
    change_metadata(built, code_file=name.format(built.parent.parent / "home" / "kaggle.json"))
    line = failure_of(lambda: push(built.parent))
    assert re.search("the name of a file in the same folder|is hidden|no such file", line)
    assert not fake_kaggle.received


@pytest.mark.parametrize("name", [METADATA_FILE, f"{SLUG}.py"])
def test_link_or_credential_is_not_pushed(fake_kaggle: FakeKaggle, built: Path, name: str) -> None:
    path = built.parent / name
    content = path.read_text()
    path.write_text(content.replace("Fast or slow", KEY) + f"# {KEY}" * (path == built))
    assert f"{name}: contains a Kaggle credential" in failure_of(lambda: push(built.parent))
    path.rename(built.parent.parent / "target")
    path.symlink_to(built.parent.parent / "target")
    assert f"{name}: is hidden or a link" in failure_of(lambda: push(built.parent))
    assert not fake_kaggle.received


def test_status_of_a_run_is_printed(fake_kaggle: FakeKaggle) -> None:
    failed = Answer(body={"status": "ERROR", "failureMessage": "out of\n\x1b[31mmemory"})
    fake_kaggle.will_answer("GetKernelSessionStatus", Answer(body={"status": "RUNNING"}), failed)
    assert status(SLUG) == KernelStatus(ID, "running", "")
    assert call("kernel", "status", f"a-team/{SLUG}") == (
        f"a-team/{SLUG}  error  out of \\x1b[31mmemory\n"
    )
    assert fake_kaggle.received[1].json == {"userName": "a-team", "kernelSlug": SLUG}


@pytest.fixture
def kaggle(fake_kaggle: FakeKaggle, storage: FileServer) -> FakeKaggle:
    fake_kaggle.kernels[ID] = 3
    fake_kaggle.log = "all went well: \ud83d\n"  # half a surrogate pair
    fake_kaggle.will_answer("GetKernelSessionStatus", *[Answer(body={"status": "COMPLETE"})] * 9)
    for name, content in FILES.items():
        storage.files[f"/{name}"] = content
        fake_kaggle.outputs[name] = f"{storage.url}/{name}?signature={SIGNATURE}"
    return fake_kaggle


def failure(out: Path) -> str:
    return failure_of(lambda: fetch_output(SLUG, out, policy=POLICY))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results" / "output"


def test_output_has_all_files_and_the_log(
    kaggle: FakeKaggle, storage: FileServer, out: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    with watched_by(lambda *step: seen.append(step)):
        got = fetch_output(SLUG, out)
    assert got == KernelOutput(ID, 3, out, 6, unfinished=False)
    found = contents(out)
    assert found == {**FILES, f"{SLUG}.log": rb"all went well: \ud83d" + b"\n"}
    assert [path.name for path in out.parent.iterdir()] == ["output"]
    assert seen[-1] == ("download", 5, 5)
    assert all("Authorization" not in asked.headers for asked in storage.asked)
    written = b"".join(contents(out.parent).values())
    assert SIGNATURE.encode() not in written
    with pytest.raises(UsageError, match="is in the way; expected a new or empty folder"):
        fetch_output(SLUG, out)


def test_cut_download_resumes(kaggle: FakeKaggle, storage: FileServer, out: Path) -> None:
    storage.will(LARGE, *[Trouble(cut_after=200_000)] + [Trouble(status=503)] * 9)
    assert "HTTP 503" in failure(out)
    assert not out.exists()
    storage.troubles.clear()
    kaggle.outputs = {name: url + "&again=1" for name, url in kaggle.outputs.items()}  # signed anew
    fetch_output(SLUG, out, policy=POLICY)
    assert contents(out)[LARGE[1:]] == FILES[LARGE[1:]]
    assert any(asked.range for asked in storage.gets(LARGE))
    assert len(storage.gets("/submission.csv")) == 1  # whole before the cut


def test_failed_kernel_leaves_only_its_log(fake_kaggle: FakeKaggle, out: Path) -> None:
    assert f"kernel {ID}: is running; fetch its output when" in failure(out)
    assert not fake_kaggle.calls("ListKernelSessionOutput")
    failed = Answer(body={"status": "ERROR", "failureMessage": "out of memory"})
    fake_kaggle.will_answer("GetKernelSessionStatus", failed)
    fake_kaggle.log = "Traceback\n"
    log = out.with_name("output.log")
    assert failure(out) == (f"kernel {ID}: ended as error: out of memory; its log is in {log}")
    assert log.read_text() == "Traceback\n"
    assert not out.exists()


def test_unfinished_kernel_is_reported(kaggle: FakeKaggle, storage: FileServer, out: Path) -> None:
    storage.files["/kernel.json"] = b'{"finished": false}'
    kaggle.outputs = {"kernel.json": f"{storage.url}/kernel.json"}
    printed = call("kernel", "output", SLUG, "--out", out)
    assert f"not finished: build it again with --kernel {ID} attached, and push" in printed
    assert f"output      {out} (2 files of {ID} version 3)" in printed
    storage.files["/kernel.json"] = b"[" * 100_000
    other = out.with_name("other")
    assert (
        json.loads(call("kernel", "output", SLUG, "--out", other, "--json"))["unfinished"] is False
    )


@pytest.mark.parametrize(
    ("names", "told"),
    [
        *(
            ([name], "expected a path within the output")
            for name in ("../up.txt", "/etc/passwd", "a/../../b", "a\\b", "", "a//b", "a\nb")
        ),
        (["half\ud83d"], "expected a path within the output"),
        (["a", "a/b/c"], "file 'a': is also a folder of the output"),
        (["a/b/c", "a/b"], "file 'a/b': is also a folder of the output"),
    ],
)
def test_names_that_a_disk_cannot_have_are_refused(
    kaggle: FakeKaggle, storage: FileServer, out: Path, names: list[str], told: str
) -> None:
    kaggle.outputs = dict.fromkeys(["fine.txt", *names], f"{storage.url}/submission.csv")
    assert told in failure(out)
    assert not storage.asked
    assert not out.parent.exists()


def test_an_address_without_encryption_is_refused(kaggle: FakeKaggle, out: Path) -> None:
    kaggle.outputs = {"a": f"http://storage.example/a?signature={SIGNATURE}"}
    assert "expected an address that starts with https://" in failure(out)
