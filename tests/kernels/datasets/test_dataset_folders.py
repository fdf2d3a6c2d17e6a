"""Dataset folders of wheels and of weights: what is in them, the same bytes again, no secrets."""

import json
from pathlib import Path

import pytest

from common.errors import PipelineError
from kernels.datasets import read_dataset, write_weights, write_wheels
from tests.fake_kaggle import KEY
from tests.kernels.conftest import WHEELS, FakePip, contents

TITLE = "Some weights"
NEEDED = {
    "DONE": b"done\n",
    "config.toml": b'model = "a"\nseed = 0\ncollection = "tile:xla"\n',
    "metrics.jsonl": b'{"step": 1}\n',
    "model.safetensors": b"weights",
    "linear.json": b"{}",
    "booster.txt": b"trees",
    "importances.parquet": b"PAR1",
}
NOT_NEEDED = {
    "checkpoint.safetensors": b"state",
    "scores-valid.parquet": b"PAR1",
    "report.json": b"{}",
    ".lock": b"",
}


def write_run(folder: Path, *, collection: str = "tile:xla", done: bool = True) -> Path:
    folder.mkdir(parents=True)
    for name, content in {**NEEDED, **NOT_NEEDED}.items():
        (folder / name).write_bytes(content.replace(b"tile:xla", collection.encode()))
    if not done:
        (folder / "DONE").unlink()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run" / "models" / "tile-xla" / "a-seed0")
    write_run(tmp_path / "run" / "models" / "xr" / "a-seed0", collection="layout:xla:random")
    (tmp_path / "run" / "config.toml").write_text('data = "0"\n[recipe]\nname = "mine"\n')
    (tmp_path / "run" / "submission.csv").write_text("ID,TopConfigs\n")
    return tmp_path / "run"


def test_weights_hold_what_ranking_needs_and_no_more(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_weights(run, out, title=TITLE) == ["layout-xla-random/a-seed0", "tile-xla/a-seed0"]
    found = contents(out)
    write_weights(run, tmp_path / "again", title=TITLE)
    assert contents(tmp_path / "again") == found
    metadata = json.loads(found.pop("dataset-metadata.json"))
    assert {name: found[f"models/tile-xla/a-seed0/{name}"] for name in NEEDED} == NEEDED
    assert len(found) == 2 * len(NEEDED)
    assert (metadata["id"], metadata["title"]) == ("some-weights", TITLE)
    assert (metadata["licenses"], metadata["isPrivate"]) == ([{"name": "CC-BY-4.0"}], True)
    assert len(read_dataset(out)[1]) == 2 * len(NEEDED)


def test_models_that_make_no_dataset_leave_nothing_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    begun = write_run(tmp_path / "begun", done=False)
    copy = write_run(run / "copy")
    assert len(write_weights(run, tmp_path / "copied", title=TITLE)) == 2
    (copy / "model.safetensors").write_bytes(b"others!")
    leaky = write_run(tmp_path / "leaky")
    (leaky / "metrics.jsonl").write_text(f'"{KEY}"\n')
    monkeypatch.setenv("KAGGLE_KEY", KEY)
    for source, told in (
        (tmp_path / "empty", "holds no run folder of a model"),
        (begun, "its training has not ended"),
        (run, r"the same model is in .*; expected one of the two"),
        (leaky, r"metrics\.jsonl: holds a Kaggle credential"),
    ):
        with pytest.raises(PipelineError, match=told):
            write_weights(source, tmp_path / "out", title=TITLE)
    assert not (tmp_path / "out").exists()


def test_wheels_are_the_pinned_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = FakePip(*WHEELS)
    monkeypatch.setattr("kernels.datasets.run_pip", pip)
    assert [path.name for path in write_wheels(tmp_path / "one")] == list(WHEELS)
    write_wheels(tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert pip.command[-2:] == ["torch-geometric==2.8.1", "tomli-w==1.2.0"]
    assert {"--no-deps", "--only-binary"} < set(pip.command)
    metadata, files = read_dataset(tmp_path / "one")
    assert metadata["id"] == "fast-or-slow-wheels"
    assert list(files) == [*WHEELS]


def test_wheels_that_cannot_be_had_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = FakePip(error="x\nERROR: no index at https://me:planted@host/simple\n")
    monkeypatch.setattr("kernels.datasets.run_pip", pip)
    with pytest.raises(PipelineError, match=r"no index at https://\*\*\*@host/simple; check the"):
        write_wheels(tmp_path / "out")
    assert not (tmp_path / "out").exists()
