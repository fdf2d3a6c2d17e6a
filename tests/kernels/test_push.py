"""The real client pushes a kernel to a server of ours and asks how it fares."""

import json
from pathlib import Path

import pytest

from common.errors import PipelineError
from common.kaggle.send_once import LOOK_AFTER_S, PUSH_POLICY
from common.retry import RetryPolicy
from kernels.build.build import KernelFolder, build
from kernels.build.metadata import METADATA_FILE
from kernels.push import KernelVersion, push, status
from tests.command_line import call
from tests.fake_kaggle import USERNAME, Answer
from tests.fake_kaggle_datasets import DROPPED, FakeKaggleDatasets

SLUG = "fast-or-slow-cpu"


@pytest.fixture
def built(project: Path, fake_kaggle: FakeKaggleDatasets, tmp_path: Path) -> KernelFolder:
    return build("cpu", {"seed": 0}, tmp_path / "out", root=project)


def failure(folder: Path, policy: RetryPolicy = PUSH_POLICY) -> str:
    with pytest.raises(PipelineError) as caught:
        push(folder, policy=policy)
    line = str(caught.value)
    assert "\n" not in line
    return line


def change_metadata(built: KernelFolder, **fields: object) -> None:
    table = json.loads(built.metadata.read_text())
    built.metadata.write_text(json.dumps({**table, **fields}))


def test_source_and_metadata_arrive_with_the_owner_filled_in(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = built.metadata.read_bytes()
    fake_kaggle.kernels[f"{USERNAME}/{SLUG}"] = 2

    version = push(built.folder)

    assert version == KernelVersion(
        f"{USERNAME}/{SLUG}", 3, f"https://www.kaggle.com/code/{USERNAME}/{SLUG}"
    )
    (call,) = fake_kaggle.calls("SaveKernel")
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


def test_an_owner_that_is_written_stays(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder
) -> None:
    change_metadata(built, id=f"a-team/{SLUG}")
    assert push(built.folder).kernel_id == f"a-team/{SLUG}"
    assert fake_kaggle.calls("SaveKernel")[0].json["slug"] == f"a-team/{SLUG}"


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
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, body: dict[str, object], expected: str
) -> None:
    fake_kaggle.will_answer("SaveKernel", Answer(body=body))
    line = failure(built.folder)
    assert expected in line
    assert f"{USERNAME}/{SLUG}" in line


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(401, {"code": 401, "message": "no"}), "make a new token"),
        (Answer(403, {"code": 403, "message": "no"}), "the token allows it"),
        (Answer(404, {"code": 404, "message": "no"}), "Kaggle knows no such thing"),
        (Answer(429, {}, {"Retry-After": "3600"}), "wait 3600 seconds"),
    ],
)
def test_a_refusal_is_not_sent_again(
    fake_kaggle: FakeKaggleDatasets,
    built: KernelFolder,
    policy: RetryPolicy,
    answer: Answer,
    expected: str,
) -> None:
    fake_kaggle.will_answer("SaveKernel", answer)
    line = failure(built.folder, policy)
    assert expected in line
    assert str(built.folder) in line
    assert "kernel status" not in line  # no doubt: it was refused
    assert len(fake_kaggle.calls("SaveKernel")) == 1


def test_a_busy_server_is_asked_again_when_it_says(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, policy: RetryPolicy, waits: list[float]
) -> None:
    fake_kaggle.will_answer("SaveKernel", Answer(429, {}, {"Retry-After": "7"}))
    said: list[str] = []
    assert push(built.folder, policy=policy, say=said.append).version == 1
    assert waits == [7.0]
    assert said == [f"push kernel {USERNAME}/{SLUG}: HTTP 429; next try in 7 s"]


def test_two_server_faults_then_success_make_one_version(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, policy: RetryPolicy
) -> None:
    fake_kaggle.will_answer("SaveKernel", Answer(500, {}), Answer(502, "<html>"))
    assert push(built.folder, policy=policy).version == 1
    assert fake_kaggle.kernels == {f"{USERNAME}/{SLUG}": 1}


@pytest.mark.parametrize("lost", [DROPPED, Answer(500, {}), Answer(504, "<html>")])
def test_a_lost_answer_is_resolved_by_asking_for_the_version(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, policy: RetryPolicy, lost: Answer
) -> None:
    fake_kaggle.kernels[f"{USERNAME}/{SLUG}"] = 4
    fake_kaggle.will_lose("SaveKernel", lost)
    said: list[str] = []
    assert push(built.folder, policy=policy, say=said.append).version == 5
    assert len(fake_kaggle.calls("SaveKernel")) == 1
    assert "Kaggle has received it" in said[0]


def test_a_version_that_kaggle_shows_a_minute_later_is_not_made_again(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, policy: RetryPolicy, waits: list[float]
) -> None:
    fake_kaggle.kernels[f"{USERNAME}/{SLUG}"] = 4
    fake_kaggle.will_lose("SaveKernel", Answer(500, {}))
    late = Answer(body={"metadata": {"currentVersionNumber": 4}})
    fake_kaggle.will_answer("GetKernel", *[late] * 3, Answer(503, {}), DROPPED, late)
    assert push(built.folder, policy=policy).version == 5
    assert len(fake_kaggle.calls("SaveKernel")) == 1
    assert waits == list(LOOK_AFTER_S)
    assert sum(waits) > 60


def test_a_dropped_connection_is_told_as_doubt_and_not_sent_again(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, policy: RetryPolicy
) -> None:
    fake_kaggle.will_answer("SaveKernel", DROPPED)
    line = failure(built.folder, policy)
    assert "dropped" in line
    assert "kernel status" in line
    assert len(fake_kaggle.calls("SaveKernel")) == 1
    assert len(fake_kaggle.calls("GetKernel")) == 1 + len(LOOK_AFTER_S)


def test_a_server_that_keeps_failing_is_told_as_doubt(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, policy: RetryPolicy
) -> None:
    fake_kaggle.will_answer("SaveKernel", *[Answer(500, {})] * 4)
    line = failure(built.folder, policy)
    assert "HTTP 500" in line
    assert "kernel status" in line


def test_the_latest_version_is_asked_for_patiently(
    fake_kaggle: FakeKaggleDatasets,
    built: KernelFolder,
    policy: RetryPolicy,
    waits: list[float],
) -> None:
    fake_kaggle.kernels[f"{USERNAME}/{SLUG}"] = 4
    fake_kaggle.will_answer("GetKernel", Answer(500, {}), DROPPED)
    assert push(built.folder, policy=policy).version == 5
    assert waits == [2.0, 4.0]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([Answer(500, {})] * 4, "HTTP 500; gave up after 4 tries"),
        ([DROPPED] * 4, "dropped; gave up after 4 tries"),
        ([Answer(401, {"code": 401, "message": "no"})], "HTTP 401"),
        ([Answer(body="<html>")], "client failed"),
    ],
)
def test_without_the_latest_version_nothing_is_sent_and_nothing_has_started(
    fake_kaggle: FakeKaggleDatasets,
    built: KernelFolder,
    policy: RetryPolicy,
    answers: list[Answer],
    expected: str,
) -> None:
    fake_kaggle.will_answer("GetKernel", *answers)
    line = failure(built.folder, policy)
    assert expected in line
    assert "may have started" not in line
    assert len(fake_kaggle.calls("GetKernel")) == len(answers)
    assert not fake_kaggle.calls("SaveKernel")


def test_a_status_is_asked_for_patiently(
    fake_kaggle: FakeKaggleDatasets, policy: RetryPolicy, waits: list[float]
) -> None:
    fake_kaggle.will_answer("GetKernelSessionStatus", Answer(500, {}), DROPPED)
    said: list[str] = []
    assert status(SLUG, policy=policy, say=said.append).state == "running"
    assert waits == [2.0, 4.0]
    assert said[0] == f"status of kernel {SLUG}: HTTP 500; next try in 2 s"
    fake_kaggle.will_answer("GetKernelSessionStatus", *[Answer(404, {"code": 404})] * 2)
    with pytest.raises(PipelineError, match="HTTP 404"):
        status(SLUG, policy=policy)
    assert len(waits) == 2


@pytest.mark.parametrize(
    "name", ["nope", "a b/some-kernel", "/some-kernel", "Some-Kernel", "a/b/c"]
)
def test_what_names_no_kernel_is_wrong_usage(fake_kaggle: FakeKaggleDatasets, name: str) -> None:
    text = call("kernel", "status", name, expect=2)
    assert text.startswith(f"error: kernel '{name}': expected owner/slug")
    assert len(text.splitlines()) == 1
    assert not fake_kaggle.received


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
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder, fields: dict[str, object], expected: str
) -> None:
    change_metadata(built, **fields)
    line = failure(built.folder)
    assert expected in line
    assert "may have started" not in line
    assert not fake_kaggle.calls("SaveKernel")


def test_an_answer_that_cannot_be_read_leaves_a_doubt(
    fake_kaggle: FakeKaggleDatasets, built: KernelFolder
) -> None:
    fake_kaggle.will_answer("SaveKernel", Answer(body="<html>"))
    assert "may have started" in failure(built.folder)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_folder_without_readable_metadata_is_refused(
    fake_kaggle: FakeKaggleDatasets, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / METADATA_FILE).write_text(text)
    assert METADATA_FILE in failure(tmp_path)
    assert not fake_kaggle.received
