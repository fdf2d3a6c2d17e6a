"""Built kernels of every kind, the real pipeline in them, on a stand-in for Kaggle's machine."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from data.tree import COLLECTIONS
from kernels.build import KINDS, Kind, build, kind_named
from kernels.datasets import write_weights
from models.config.recipe import Recipe, load_recipe
from tests.command_line import call
from tests.kernels.conftest import run_script

TILE = "tile:xla"
TRAIN_TILE = kind_named("train", TILE)
ONE_MODEL = ["threads=1", 'tile.models=["late_fusion_sage"]']
OVERRIDES = [part for value in ONE_MODEL for part in ("--set", value)]
RunKernel = Callable[..., str]


_NO_SOCKETS = """
import socket
def refuse(*arguments, **options):
    raise OSError("no network in a kernel")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = refuse
"""
# The pipeline's clock, not the kernel's, jumps ahead as soon as there is a checkpoint.
AT_A_CHECKPOINT = """
import os, pathlib
working = pathlib.Path(os.environ["PIPELINE_KAGGLE_WORKING"])
def is_late():
    return any(working.rglob("checkpoint.safetensors"))
import sys, time
if "pipeline" in sys.orig_argv:
    real = time.monotonic
    def monotonic():
        return real() + (86400 if is_late() else 0)
    time.monotonic = monotonic
"""


@pytest.fixture
def kaggle(tiny_tree: Path, tmp_path: Path) -> Path:
    mount = tmp_path / "kaggle" / "input" / "competitions" / "predict-ai-model-runtime" / "npz_all"
    shutil.copytree(tiny_tree / "npz", mount / "npz")
    return tmp_path / "kaggle"


@pytest.fixture
def run_kernel(kaggle: Path, tmp_path: Path) -> RunKernel:
    def run(recipe: Recipe, kind: Kind, *, stops: str = "", notebook: bool = False) -> str:
        number = len([path for path in tmp_path.iterdir() if path.name.startswith("version")])
        place = tmp_path / f"version{number}"
        table = recipe.model_dump(mode="json", exclude_none=True)
        attached = {"kernel_sources": ["someone/fast-or-slow-smoke-train"]}
        built = build("smoke", table, place / "built", kind=kind, notebook=notebook, **attached)
        scratch, site = place / "scratch", place / "scratch" / "site"
        site.mkdir(parents=True)
        (site / "sitecustomize.py").write_text(_NO_SOCKETS + stops)
        paths = {"TMPDIR": str(scratch), "PYTHONPATH": str(site)}
        settings = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        ended = run_script(built, kaggle, scratch, **paths, **settings)
        assert ended.returncode == 0, ended.stderr
        left = [path.name for path in scratch.iterdir()]
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
    assert not finished(kaggle)
    assert not (folder / "DONE").exists()
    assert (folder / "checkpoint.safetensors").exists()

    attach_output(kaggle, "notebooks/someone/fast-or-slow-smoke-train-tile-xla")
    log = run_kernel(recipe, TRAIN_TILE)
    assert "goes on with an earlier training" in log
    assert finished(kaggle)
    assert (folder / "DONE").exists()

    arguments = ["--data", tiny_tree, "--collection", TILE, "--recipe", "smoke", *OVERRIDES]
    call("train", *arguments, "--out", tmp_path / "undisturbed")
    for name in ("model.safetensors", "metrics.jsonl", "config.toml"):
        undisturbed = tmp_path / "undisturbed" / folder.name / name
        assert (folder / name).read_bytes() == undisturbed.read_bytes()


@pytest.mark.slow
def test_a_notebook_runs_the_recipe_and_shows_what_came_out(
    kaggle: Path, run_kernel: RunKernel, tiny_tree: Path, tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ["threads=1", "layout.models=['layout_linear']"])
    run_kernel(recipe, KINDS["run"], notebook=True)
    call("submission", "check", kaggle / "working" / "submission.csv", "--data", tiny_tree)
    (path,) = tmp_path.glob("version*/built/*.ipynb")
    outputs = nbformat.read(path, as_version=4).cells[-1].outputs
    (picture,) = [own.data for own in outputs if own.output_type == "display_data"]
    assert "image/png" in picture
    told = "".join(own.text for own in outputs if own.output_type == "stream")
    assert f"{TILE:<20} tile_score" in told
    assert f"{kaggle}/working/submission.csv\nID,TopConfigs\ntile:xla:" in told


@pytest.mark.slow
def test_trained_collections_become_a_submission(
    kaggle: Path, run_kernel: RunKernel, tiny_tree: Path, tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ["threads=1"])
    for number, collection in enumerate(COLLECTIONS):
        run_kernel(recipe, kind_named("train", collection.name))
        assert finished(kaggle)
        if number < 2:
            attach_output(kaggle, f"notebooks/someone/fast-or-slow-smoke-{collection.slug}")
        else:  # as a dataset of weights
            out = tmp_path / "weights" / collection.slug
            write_weights(kaggle / "working", out, title="Some weights")
            shutil.copytree(out, kaggle / "input" / "datasets" / "a" / f"w-{collection.slug}")

    run_kernel(recipe, KINDS["infer"])

    submission = kaggle / "working" / "submission.csv"
    call("submission", "check", submission, "--data", tiny_tree)
    options = ("--recipe", "smoke", "--set", "threads=1", "--out", tmp_path / "run")
    call("run", "--data", tiny_tree, *options)
    assert submission.read_bytes() == (tmp_path / "run" / "submission.csv").read_bytes()
    assert not (kaggle / "working" / "run" / "models").exists()
