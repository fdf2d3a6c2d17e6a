"""A chain of kernels on the fake server, with kills and refusals, and the commands one by one."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import kernels.chain
from common.errors import PipelineError
from kernels.build import METADATA_FILE
from kernels.chain import run_chain
from kernels.remote import KernelVersion, QuotaError, push
from models.config.recipe import Recipe, load_recipe
from tests.kernels.conftest import WHEELS as WHEEL_FILES
from tests.kernels.conftest import FakePip, contents
from tests.kernels.test_datasets import write_run
from tests.support.command_line import call
from tests.support.fake_kaggle import USERNAME, Answer, FakeKaggle
from tests.support.file_server import FileServer

LAYOUT, TILE, INFER = (
    f"{USERNAME}/fast-or-slow-cpu-{words}"
    for words in ("train-layout-xla-default", "train-tile-xla", "infer")
)
WHEELS = f"{USERNAME}/fast-or-slow-wheels"
OUTPUTS: dict[str, list[dict[str, str]]] = {
    LAYOUT: [
        {"kernel.json": '{"finished": false}', "models/a/checkpoint": "half"},
        {"kernel.json": '{"finished": true}', "models/a/DONE": "layout"},
    ],
    TILE: [{"kernel.json": '{"finished": true}', "models/b/DONE": "tile"}],
    INFER: [{"kernel.json": '{"finished": true}', "submission.csv": "ID,TopConfigs"}],
}


class Killed(BaseException):
    """The process of the chain ends."""


@pytest.fixture
def kaggle(
    fake_kaggle: FakeKaggle, storage: FileServer, monkeypatch: pytest.MonkeyPatch
) -> FakeKaggle:
    monkeypatch.setattr(kernels.chain, "POLL_S", 0.0)
    for kernel, sessions in OUTPUTS.items():
        fake_kaggle.sessions[kernel] = []
        for number, files in enumerate(sessions):
            paths = {name: f"/{kernel}/{number}/{name}" for name in files}
            storage.files |= {paths[name]: text.encode() for name, text in files.items()}
            links = {name: f"{storage.url}{path}" for name, path in paths.items()}
            fake_kaggle.sessions[kernel].append(links)
    return fake_kaggle


@pytest.fixture
def recipe() -> Recipe:
    # Its layout models learn from all collections, so two train kernels are enough.
    return load_recipe("cpu")


def pushed(kaggle: FakeKaggle) -> list[tuple[str, list[str]]]:
    """Return the kernel and the attached kernels of each push."""
    calls = [call.json for call in kaggle.calls("SaveKernel")]
    return [(each["slug"], each.get("kernelDataSources", [])) for each in calls]


PUSHES = [(LAYOUT, []), (TILE, []), (LAYOUT, [LAYOUT]), (INFER, [LAYOUT, TILE])]


def check_end(kaggle: FakeKaggle, out: Path) -> None:
    assert sorted(pushed(kaggle)) == sorted(PUSHES)
    assert pushed(kaggle)[-1] == PUSHES[-1]
    for kernel, sessions in OUTPUTS.items():
        slug = kernel.partition("/")[2]
        found = {name: text.decode() for name, text in contents(out / slug / "output").items()}
        assert found == sessions[-1]


def test_chain_resumes_a_session_and_ranks_with_all_outputs(
    kaggle: FakeKaggle, tmp_path: Path
) -> None:
    chain = ("kernel", "chain", "--recipe", "cpu", "--dataset", WHEELS, "--out", tmp_path)
    submission = tmp_path / "fast-or-slow-cpu-infer" / "output" / "submission.csv"
    assert call(*chain).splitlines()[-1] == f"submission  {submission}"
    check_end(kaggle, tmp_path)
    assert kaggle.most_running == 2
    sent = [request.json for request in kaggle.calls("SaveKernel")]
    assert all(each["datasetDataSources"] == [WHEELS] for each in sent)
    n_calls = len(kaggle.calls("SaveKernel"))
    call(*chain)
    assert len(kaggle.calls("SaveKernel")) == n_calls


@pytest.mark.parametrize("place", ["wait", "before a push", "after a push"])
def test_killed_chain_ends_as_an_uninterrupted_one(
    kaggle: FakeKaggle, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It is killed at each wait or push, and started again."""
    kills = [0]

    def kill(_: float = 0.0) -> None:
        kills[0] += 1
        raise Killed

    ended: list[str] = []

    def push_and_kill(folder: Path) -> KernelVersion:
        metadata = (folder / METADATA_FILE).read_text()
        if place == "before a push" and metadata not in ended:
            ended.append(metadata)
            kill()
        sent = push(folder)
        if place == "after a push":
            kill()
        return sent

    monkeypatch.setattr(kernels.chain, "push", push_and_kill)
    if place == "wait":
        monkeypatch.setattr(kernels.chain, "time", SimpleNamespace(sleep=kill))
    for _ in range(30):
        try:
            run_chain(recipe, tmp_path, datasets=[WHEELS])
            break
        except Killed:
            continue
    assert kills[0] >= 3
    check_end(kaggle, tmp_path)


def test_refusal_for_quota_ends_in_one_line_and_the_next_call_resumes(
    kaggle: FakeKaggle, recipe: Recipe, tmp_path: Path
) -> None:
    full = Answer(body={"error": "Your weekly GPU quota\nis used up"})
    kaggle.will_answer("SaveKernel", full)
    with pytest.raises(QuotaError) as caught:
        run_chain(recipe, tmp_path)
    reason = "Kaggle does not start it now: Your weekly GPU quota is used up"
    assert str(caught.value) == f"kernel {LAYOUT}: {reason}; run the same command again later"
    kaggle.received.clear()
    run_chain(recipe, tmp_path)
    check_end(kaggle, tmp_path)


def test_chain_waits_for_its_kernels_if_kaggle_has_no_place(
    kaggle: FakeKaggle, recipe: Recipe, tmp_path: Path
) -> None:
    acted = Answer(acts=True, body={"versionNumber": 1})
    full = Answer(body={"error": "Maximum batch GPU session count of 2 reached"})
    kaggle.will_answer("SaveKernel", acted, full)
    run_chain(recipe, tmp_path)
    refused = pushed(kaggle).pop(1)
    assert refused[0] == TILE
    assert kaggle.kernels == {LAYOUT: 2, TILE: 1, INFER: 1}


def test_failed_kernel_ends_the_chain_with_its_log(
    kaggle: FakeKaggle, recipe: Recipe, tmp_path: Path
) -> None:
    kaggle.sessions[TILE] = [{}]
    kaggle.log = "out of memory"
    with pytest.raises(PipelineError, match=f"kernel {TILE}: ended as error; its log is in (.*)"):
        run_chain(recipe, tmp_path)
    log = tmp_path / "fast-or-slow-cpu-train-tile-xla" / "session-1.log"
    assert log.read_text() == "out of memory"


def test_earlier_version_of_a_kernel_is_not_taken_for_this_chain(
    kaggle: FakeKaggle, recipe: Recipe, tmp_path: Path
) -> None:
    kaggle.kernels[TILE] = 1
    kaggle.sessions[TILE] *= 2
    run_chain(recipe, tmp_path)
    check_end(kaggle, tmp_path)
    assert kaggle.kernels[TILE] == 2


def finish(kaggle: FakeKaggle, storage: FileServer, folder: Path) -> None:
    """Let the kernel that runs be complete, with the files of `folder` as its output."""
    kaggle.outputs.clear()
    for path in folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            storage.files[f"/{name}"] = path.read_bytes()
            kaggle.outputs[name] = f"{storage.url}/{name}?signature=1"
    kaggle.will_answer("GetKernelSessionStatus", *[Answer(body={"status": "COMPLETE"})] * 2)


def test_commands_without_a_chain_lead_from_wheels_to_a_submission(
    fake_kaggle: FakeKaggle,
    storage: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_slug, infer_slug = "fast-or-slow-smoke-train-tile-xla", "fast-or-slow-smoke-infer"
    monkeypatch.setattr("kernels.datasets.run_pip", FakePip(*WHEEL_FILES))
    runs = tmp_path / "runs"
    wheels = ["--dataset", f"{USERNAME}/fast-or-slow-wheels"]
    built = ["kernel", "build", "--recipe", "smoke", *wheels]

    call("kernel", "wheels", "--out", runs / "wheels")
    call("dataset", "push", runs / "wheels", "-m", "pinned versions")
    train = ["--kind", "train", "--collection", "tile:xla", "--out", runs / "kernel-tile"]
    call(*built, *train)
    assert f"pushed      {USERNAME}/{train_slug} version 1" in call(
        "kernel", "push", runs / "kernel-tile"
    )
    assert call("kernel", "status", train_slug) == f"{USERNAME}/{train_slug}  running\n"

    write_run(tmp_path / "working" / "models" / "tile-xla" / "a-seed0")
    finish(fake_kaggle, storage, tmp_path / "working")
    assert call("kernel", "status", train_slug) == f"{USERNAME}/{train_slug}  complete\n"
    call("kernel", "output", train_slug, "--out", runs / "trained" / "tile")
    call("kernel", "weights", "--run", runs / "trained", "--out", runs / "weights")
    call("dataset", "push", runs / "weights", "-m", "all collections")
    weights = fake_kaggle.datasets[f"{USERNAME}/fast-or-slow-weights"]
    assert weights.files["models/tile-xla/a-seed0/model.safetensors"] == b"weights"

    infer = ["--kind", "infer", "--dataset", f"{USERNAME}/fast-or-slow-weights"]
    call(*built, *infer, "--out", runs / "kernel-infer")
    call("kernel", "push", runs / "kernel-infer")
    assert fake_kaggle.kernels == {f"{USERNAME}/{train_slug}": 1, f"{USERNAME}/{infer_slug}": 1}
    first, second = (request.json for request in fake_kaggle.calls("SaveKernel"))
    assert (first["machineShape"], first["enableInternet"]) == ("NvidiaTeslaT4", False)
    sources = [f"{USERNAME}/fast-or-slow-wheels", f"{USERNAME}/fast-or-slow-weights"]
    assert second["datasetDataSources"] == sources

    (tmp_path / "ranked").mkdir()
    (tmp_path / "ranked" / "submission.csv").write_text("ID,TopConfigs\n")
    finish(fake_kaggle, storage, tmp_path / "ranked")
    got = json.loads(call("kernel", "output", infer_slug, "--out", runs / "inferred", "--json"))
    assert got["files"] == 1
    assert (runs / "inferred" / "submission.csv").read_text() == "ID,TopConfigs\n"
