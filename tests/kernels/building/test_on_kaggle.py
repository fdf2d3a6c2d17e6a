"""Built kernels of every kind, the real pipeline in them, on a stand-in for Kaggle's machine."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from common.git import revision
from data.tree import COLLECTIONS
from kernels.building.build import build
from kernels.building.kinds import KINDS, Kind, kind_named
from kernels.datasets.weights import write_weights
from models.config.recipe import Recipe, load_recipe
from models.predict import read_scores
from tests.command_line import call
from tests.kernels.kaggle_machine import (
    AT_A_CHECKPOINT,
    WITHIN_A_SPLIT,
    run_on_kaggle,
)

TILE = "tile:xla"
TRAIN_TILE = kind_named("train", TILE)
ONE_MODEL = ["threads=1", 'tile.models=["late_fusion_sage"]']
RunKernel = Callable[..., str]


@pytest.fixture
def kaggle(tiny_tree: Path, tmp_path: Path) -> Path:
    """What /kaggle holds when the competition's data are attached."""
    mount = tmp_path / "kaggle" / "input" / "competitions" / "predict-ai-model-runtime" / "npz_all"
    shutil.copytree(tiny_tree / "npz", mount / "npz")
    return tmp_path / "kaggle"


@pytest.fixture
def run_kernel(kaggle: Path, tmp_path: Path) -> RunKernel:
    """Build a kernel, run it, and return its log."""

    def run(recipe: Recipe, kind: Kind, *, stops: str = "", expect: int = 0) -> str:
        number = len([path for path in tmp_path.iterdir() if path.name.startswith("version")])
        place = tmp_path / f"version{number}"
        table = recipe.model_dump(mode="json", exclude_none=True)
        sources = ["someone/fast-or-slow-smoke-train"]
        built = build("smoke", table, place / "built", kind=kind, kernel_sources=sources)
        (place / "scratch").mkdir()
        ended = run_on_kaggle(built.script, kaggle, place / "scratch", stops=stops)
        assert ended.returncode == expect, ended.stderr
        left = [path.name for path in (place / "scratch").iterdir()]
        assert not [name for name in left if name.startswith("pipeline-") and "store" not in name]
        return ended.stdout + ended.stderr

    return run


def attach_output(kaggle: Path, mount: str) -> None:
    """Attach what the version that ran last has left as a source of the next one."""
    target = kaggle / "input" / mount
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(kaggle / "working", target)


def finished(kaggle: Path) -> bool:
    return json.loads((kaggle / "working" / "kernel.json").read_text())["finished"]


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_in_the_next_version(
    kaggle: Path, run_kernel: RunKernel, tiny_tree: Path, tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ONE_MODEL)
    folder = kaggle / "working" / "models" / "tile-xla" / "late_fusion_sage-seed0"

    log = run_kernel(recipe, TRAIN_TILE, stops=AT_A_CHECKPOINT)
    assert "out of time at step 4 of 6" in log
    assert "push the kernel again with its own output attached" in log
    assert not finished(kaggle)
    assert not (folder / "DONE").exists()
    assert (folder / "checkpoint.safetensors").exists()

    attach_output(kaggle, "notebooks/someone/fast-or-slow-smoke-train-tile-xla")
    log = run_kernel(recipe, TRAIN_TILE)
    assert "goes on with an earlier training" in log
    assert finished(kaggle)
    assert (folder / "DONE").exists()
    assert not (folder / "checkpoint.safetensors").exists()

    arguments = ["--data", tiny_tree, "--collection", TILE, "--recipe", "smoke"]
    overrides = [part for value in ONE_MODEL for part in ("--set", value)]
    call("train", *arguments, *overrides, "--out", tmp_path / "undisturbed")
    for name in ("model.safetensors", "metrics.jsonl", "config.toml"):
        undisturbed = tmp_path / "undisturbed" / folder.name / name
        assert (folder / name).read_bytes() == undisturbed.read_bytes()


@pytest.mark.slow
def test_a_ranking_that_was_stopped_goes_on_in_the_next_version(
    kaggle: Path, run_kernel: RunKernel, tmp_path: Path
) -> None:
    (mount,) = kaggle.rglob("npz_all")
    shutil.rmtree(mount / "npz" / "layout")
    recipe, undisturbed = load_recipe("smoke", ONE_MODEL), tmp_path / "undisturbed"
    overrides = [part for value in ONE_MODEL for part in ("--set", value)]
    call("run", "--data", mount, "--recipe", "smoke", *overrides, "--out", undisturbed)
    shutil.copytree(undisturbed / "models", kaggle / "input" / "weights")
    scores = kaggle / "working" / "run" / "scores" / "tile-xla" / "late_fusion_sage-seed0"

    log = run_kernel(recipe, KINDS["infer"], stops=WITHIN_A_SPLIT)
    assert "out of time with 1 of 3 graphs" in log
    assert "push the kernel again with its own output attached" in log
    assert not finished(kaggle)
    kept = {path.name: read_scores(path)["graph"].n_unique() for path in scores.iterdir()}
    assert kept == {"test.parquet": 3, "valid.begun.parquet": 1}

    attach_output(kaggle, "notebooks/someone/fast-or-slow-smoke-infer")
    for note in (kaggle / "input").rglob("weights/**/metrics.jsonl"):
        note.write_text("trained again")  # other models than those in the output, by now
    # Were all begun anew, the time would be over again, at the same graph.
    run_kernel(recipe, KINDS["infer"], stops=WITHIN_A_SPLIT)
    assert finished(kaggle)
    submission = kaggle / "working" / "submission.csv"
    assert submission.read_bytes() == (undisturbed / "submission.csv").read_bytes()
    assert not (kaggle / "working" / "run" / "models").exists()

    other = load_recipe("smoke", [*ONE_MODEL, "features.prune=hops-2"])
    log = run_kernel(other, KINDS["infer"], expect=1)
    assert "run: was begun with recipe.features.prune = " in log
    assert "now 'hops-2'" in log


@pytest.mark.slow
def test_a_whole_recipe_runs_in_a_kernel(
    kaggle: Path, run_kernel: RunKernel, tiny_tree: Path
) -> None:
    run_kernel(load_recipe("smoke"), KINDS["run"])
    report = json.loads((kaggle / "working" / "run" / "report.json").read_text())
    assert report["revision"] == revision()
    submission = kaggle / "working" / "submission.csv"
    call("submission", "check", submission, "--data", tiny_tree)


@pytest.mark.slow
def test_trained_collections_become_a_submission(
    kaggle: Path, run_kernel: RunKernel, tiny_tree: Path, tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ["threads=1"])
    mounts = ["fast-or-slow-smoke-{}", "notebooks/someone/fast-or-slow-smoke-{}"]
    for number, collection in enumerate(COLLECTIONS):
        run_kernel(recipe, kind_named("train", collection.name))
        assert finished(kaggle)
        if number < len(mounts):
            attach_output(kaggle, mounts[number].format(collection.slug))
        else:  # as a dataset of weights, in the old place and in the new one
            out = tmp_path / "weights" / collection.slug
            write_weights(kaggle / "working", out, title="Some weights", licence="CC-BY-4.0")
            old = number % 2 == 0
            mount = f"weights-{collection.slug}" if old else f"datasets/a/w-{collection.slug}"
            shutil.copytree(out, kaggle / "input" / mount)

    run_kernel(recipe, KINDS["infer"])

    submission = kaggle / "working" / "submission.csv"
    call("submission", "check", submission, "--data", tiny_tree)
    call(
        "run",
        "--data",
        tiny_tree,
        *["--recipe", "smoke", "--set", "threads=1"],
        *["--out", tmp_path / "run"],
    )
    assert submission.read_bytes() == (tmp_path / "run" / "submission.csv").read_bytes()
    assert not (kaggle / "working" / "run" / "models").exists()
