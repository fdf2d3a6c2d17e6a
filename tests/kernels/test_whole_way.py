"""The whole way through Kaggle, by the README's commands."""

import json
from pathlib import Path

import pytest

from tests.kernels.conftest import WHEELS, FakePip
from tests.kernels.test_datasets import write_run
from tests.support.command_line import call
from tests.support.fake_kaggle import USERNAME, Answer, FakeKaggle
from tests.support.file_server import FileServer

TRAIN = "fast-or-slow-smoke-train-tile-xla"
INFER = "fast-or-slow-smoke-infer"


def finish(kaggle: FakeKaggle, storage: FileServer, folder: Path) -> None:
    """Let the kernel that runs be complete, with the files of `folder` as its output."""
    kaggle.outputs.clear()
    for path in folder.rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            storage.files[f"/{name}"] = path.read_bytes()
            kaggle.outputs[name] = f"{storage.url}/{name}?signature=1"
    kaggle.will_answer("GetKernelSessionStatus", *[Answer(body={"status": "COMPLETE"})] * 2)


def test_commands_lead_from_wheels_to_a_submission(
    fake_kaggle: FakeKaggle,
    storage: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kernels.datasets.run_pip", FakePip(*WHEELS))
    runs = tmp_path / "runs"
    wheels = ["--dataset", f"{USERNAME}/fast-or-slow-wheels"]
    built = ["kernel", "build", "--recipe", "smoke", *wheels]

    call("kernel", "wheels", "--out", runs / "wheels")
    call("dataset", "push", runs / "wheels", "-m", "pinned versions")
    train = ["--kind", "train", "--collection", "tile:xla", "--out", runs / "kernel-tile"]
    call(*built, *train)
    assert f"pushed      {USERNAME}/{TRAIN} version 1" in call(
        "kernel", "push", runs / "kernel-tile"
    )
    assert call("kernel", "status", TRAIN) == f"{USERNAME}/{TRAIN}  running\n"

    write_run(tmp_path / "working" / "models" / "tile-xla" / "a-seed0")
    finish(fake_kaggle, storage, tmp_path / "working")
    assert call("kernel", "status", TRAIN) == f"{USERNAME}/{TRAIN}  complete\n"
    call("kernel", "output", TRAIN, "--out", runs / "trained" / "tile")
    call("kernel", "weights", "--run", runs / "trained", "--out", runs / "weights")
    call("dataset", "push", runs / "weights", "-m", "all collections")
    weights = fake_kaggle.datasets[f"{USERNAME}/fast-or-slow-weights"]
    assert weights.files["models/tile-xla/a-seed0/model.safetensors"] == b"weights"

    infer = ["--kind", "infer", "--dataset", f"{USERNAME}/fast-or-slow-weights"]
    call(*built, *infer, "--out", runs / "kernel-infer")
    call("kernel", "push", runs / "kernel-infer")
    assert fake_kaggle.kernels == {f"{USERNAME}/{TRAIN}": 1, f"{USERNAME}/{INFER}": 1}
    first, second = (request.json for request in fake_kaggle.calls("SaveKernel"))
    assert (first["machineShape"], first["enableInternet"]) == ("NvidiaTeslaT4", False)
    sources = [f"{USERNAME}/fast-or-slow-wheels", f"{USERNAME}/fast-or-slow-weights"]
    assert second["datasetDataSources"] == sources

    (tmp_path / "ranked").mkdir()
    (tmp_path / "ranked" / "submission.csv").write_text("ID,TopConfigs\n")
    finish(fake_kaggle, storage, tmp_path / "ranked")
    got = json.loads(call("kernel", "output", INFER, "--out", runs / "inferred", "--json"))
    assert got["files"] == 1
    assert (runs / "inferred" / "submission.csv").read_text() == "ID,TopConfigs\n"
