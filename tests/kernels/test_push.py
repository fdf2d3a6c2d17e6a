"""The real client pushes a kernel to a server of ours and asks how it fares."""

import json
from pathlib import Path

import pytest

from data.errors import PipelineError
from kernels.build import KernelFolder, build
from kernels.metadata import METADATA_FILE
from kernels.push import KernelStatus, KernelVersion, push, status
from tests.fake_kaggle import USERNAME, Answer, FakeKaggle

SLUG = "fast-or-slow-cpu"


@pytest.fixture
def built(project: Path, fake_kaggle: FakeKaggle, tmp_path: Path) -> KernelFolder:
    return build("cpu", {"seed": 0}, tmp_path / "out", root=project)


def failure(folder: Path) -> str:
    with pytest.raises(PipelineError) as caught:
        push(folder)
    line = str(caught.value)
    assert "\n" not in line
    return line


def change_metadata(built: KernelFolder, **fields: object) -> None:
    table = json.loads(built.metadata.read_text())
    built.metadata.write_text(json.dumps({**table, **fields}))


def test_source_and_metadata_arrive_with_the_owner_filled_in(
    fake_kaggle: FakeKaggle, built: KernelFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = built.metadata.read_bytes()

    version = push(built.folder)

    assert version == KernelVersion(f"{USERNAME}/{SLUG}", 3, "https://www.kaggle.com/code/a/b")
    (call,) = fake_kaggle.received
    assert call.path == "/api/v1/kernels.KernelsApiService/SaveKernel"
    sent = call.json
    assert sent.pop("text") == built.script.read_text()
    assert sent == {
        "slug": f"{USERNAME}/{SLUG}",
        "newTitle": "Fast or slow cpu",
        "language": "python",
        "kernelType": "script",
        "competitionDataSources": ["predict-ai-model-runtime"],
        "isPrivate": True,
        "enableGpu": True,
        "enableInternet": False,
        "enableTpu": False,
        "dockerImagePinningType": "original",
        "machineShape": "NvidiaTeslaT4",
    }
    assert built.metadata.read_bytes() == before
    assert capsys.readouterr() == ("", "")


def test_an_owner_that_is_written_stays(fake_kaggle: FakeKaggle, built: KernelFolder) -> None:
    change_metadata(built, id=f"a-team/{SLUG}")
    assert push(built.folder).kernel_id == f"a-team/{SLUG}"
    assert fake_kaggle.received[0].json["slug"] == f"a-team/{SLUG}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": "Maximum batch GPU\nsession count"}, "refused it: Maximum batch GPU session"),
        (
            {"versionNumber": 4, "invalidDatasetSources": ["a/b-wheels", "a/c"]},
            "version 4 runs without dataset sources a/b-wheels, a/c",
        ),
        (
            {"versionNumber": 4, "invalidCompetitionSources": ["x"], "invalidModelSources": ["m"]},
            "without competition sources x; model sources m",
        ),
        ({"versionNumber": 4, "invalidKernelSources": ["a/k"]}, "without kernel sources a/k"),
    ],
)
def test_a_refusal_that_comes_as_a_value_is_an_error(
    fake_kaggle: FakeKaggle, built: KernelFolder, body: dict[str, object], expected: str
) -> None:
    fake_kaggle.will_answer("SaveKernel", Answer(body=body))
    line = failure(built.folder)
    assert expected in line
    assert f"{USERNAME}/{SLUG}" in line


@pytest.mark.parametrize(
    ("answer", "expected", "in_doubt"),
    [
        (Answer(401, {"code": 401, "message": "no"}), "make a new token", False),
        (Answer(403, {"code": 403, "message": "no"}), "the token allows it", False),
        (Answer(429, {}, {"Retry-After": "5"}), "wait 5 seconds", False),
        (Answer(500, {}), "try again in a few minutes", True),
        (Answer(drop=True), "dropped", True),
    ],
)
def test_a_failed_request_is_an_error(
    fake_kaggle: FakeKaggle, built: KernelFolder, answer: Answer, expected: str, in_doubt: bool
) -> None:
    fake_kaggle.will_answer("SaveKernel", answer)
    line = failure(built.folder)
    assert expected in line
    assert str(built.folder) in line
    assert ("kernel status" in line) == in_doubt


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": "someone/other-kernel"}, f"expected it to end in '{SLUG}'"),
        ({"title": ""}, "key 'title' is missing"),
        ({"code_file": "gone.py"}, "gone.py: no such file"),
        ({"language": "perl"}, "A valid language must be specified"),
        ({"dataset_sources": ["no-owner"]}, "Dataset must be specified"),
    ],
)
def test_wrong_metadata_is_refused_before_anything_is_sent(
    fake_kaggle: FakeKaggle, built: KernelFolder, fields: dict[str, object], expected: str
) -> None:
    change_metadata(built, **fields)
    assert expected in failure(built.folder)
    assert not fake_kaggle.received


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_folder_without_readable_metadata_is_refused(
    fake_kaggle: FakeKaggle, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / METADATA_FILE).write_text(text)
    assert METADATA_FILE in failure(tmp_path)
    assert not fake_kaggle.received


def test_the_status_of_a_run(fake_kaggle: FakeKaggle) -> None:
    failed = Answer(body={"status": "ERROR", "failureMessage": "out of memory"})
    fake_kaggle.will_answer("GetKernelSessionStatus", Answer(body={"status": "RUNNING"}), failed)

    assert status(SLUG) == KernelStatus(f"{USERNAME}/{SLUG}", "running", "")
    assert status(f"a-team/{SLUG}") == KernelStatus(f"a-team/{SLUG}", "error", "out of memory")

    assert fake_kaggle.received[1].json == {"userName": "a-team", "kernelSlug": SLUG}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(403, {"code": 403, "message": "denied"}), "HTTP 403.*Kaggle says: denied"),
        (Answer(404, {"code": 404, "message": "none"}), "HTTP 404"),
        (Answer(body={"status": "DREAMING"}), "client failed: KeyError: 'DREAMING'"),
    ],
)
def test_a_status_that_cannot_be_had_is_an_error(
    fake_kaggle: FakeKaggle, answer: Answer, expected: str
) -> None:
    fake_kaggle.will_answer("GetKernelSessionStatus", answer)
    with pytest.raises(PipelineError, match=f"status of kernel {SLUG}: .*{expected}"):
        status(SLUG)
