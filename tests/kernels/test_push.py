"""The real client pushes a kernel to a server of ours and asks how it fares."""

import json
from pathlib import Path

import pytest

from kernels.build import METADATA_FILE, build
from kernels.remote import KernelStatus, KernelVersion, push, status
from tests.command_line import call
from tests.fake_kaggle import USERNAME, Answer, FakeKaggle, failure_of

SLUG = "fast-or-slow-cpu"
ID = f"{USERNAME}/{SLUG}"


@pytest.fixture
def built(project: Path, fake_kaggle: FakeKaggle, tmp_path: Path) -> Path:
    return build("cpu", {"seed": 0}, tmp_path / "out", root=project)


def change_metadata(built: Path, **fields: object) -> None:
    metadata = built.parent / METADATA_FILE
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **fields}))


def test_source_and_metadata_arrive_with_the_owner_filled_in(
    fake_kaggle: FakeKaggle, built: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_kaggle.kernels[ID] = 2
    change_metadata(built, dataset_sources=["a/wheels"], docker_image=None)
    assert push(built.parent) == KernelVersion(ID, 3, f"https://www.kaggle.com/code/{ID}")
    (call,) = fake_kaggle.calls("SaveKernel")
    assert call.path == "/api/v1/kernels.KernelsApiService/SaveKernel"
    sent = call.json
    assert sent.pop("text") == built.read_text()
    assert (sent["slug"], sent["newTitle"]) == (ID, "Fast or slow cpu")
    assert sent["competitionDataSources"] == ["predict-ai-model-runtime"]
    assert sent["datasetDataSources"] == ["a/wheels"]
    assert (sent["isPrivate"], sent["enableGpu"], sent["enableInternet"]) == (True, True, False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"error": "Maximum batch GPU\nsession count"}, "refused it: Maximum batch GPU session"),
        (
            {"versionNumber": 4, "invalidDatasetSources": ["a/b-wheels", "a/c"]},
            "version 4 runs without dataset sources a/b-wheels, a/c",
        ),
    ],
)
def test_a_refusal_that_comes_as_a_value_is_an_error(
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
        ({"title": ""}, "key 'title' is missing"),
        ({"code_file": "gone.py"}, "gone.py: no such file"),
        ({"is_private": "yes"}, "is_private must be of type bool"),
    ],
)
def test_wrong_metadata_is_refused_before_anything_is_sent(
    fake_kaggle: FakeKaggle, built: Path, fields: dict[str, object], expected: str
) -> None:
    change_metadata(built, **fields)
    line = failure_of(lambda: push(built.parent))
    assert expected in line
    assert "may have started" not in line
    assert not fake_kaggle.calls("SaveKernel")


def test_a_folder_that_was_never_built_is_refused(tmp_path: Path) -> None:
    line = failure_of(lambda: push(tmp_path / "kernel"))
    assert line == f"{tmp_path}/kernel: no kernel's folder; `kernel build` writes one"


def test_the_status_of_a_run(fake_kaggle: FakeKaggle) -> None:
    failed = Answer(body={"status": "ERROR", "failureMessage": "out of\n\x1b[31mmemory"})
    fake_kaggle.will_answer("GetKernelSessionStatus", Answer(body={"status": "RUNNING"}), failed)
    assert status(SLUG) == KernelStatus(ID, "running", "")
    assert call("kernel", "status", f"a-team/{SLUG}") == (
        f"a-team/{SLUG}  error  out of \\x1b[31mmemory\n"
    )
    assert fake_kaggle.received[1].json == {"userName": "a-team", "kernelSlug": SLUG}
