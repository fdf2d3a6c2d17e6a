"""Training and ranking on a GPU, next to the CPU's. They need a CUDA GPU."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import PipelineError
from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.tree import GraphFile, collection_named, find_graphs
from models.config.recipe import Recipe, load_recipe
from models.layout import network
from models.registry import MODELS, TrainJob, load_model
from models.train import train_model
from models.training.device import device_of
from models.training.loop import CHECKPOINT, WEIGHTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU"),
]
SAGE = "cross_config_sage"
NETWORKS = [name for name in MODELS if load_recipe("smoke").training_of(name)]
N_STEPS = 40
CLOSE = 2e-2  # AdamW magnifies the rounding of gradients that are nearly 0
COMMAND = """
import sys
from pathlib import Path
from tests.models.training.test_on_gpu import train
train(Path(sys.argv[1]), resume=sys.argv[2] == "resume")
"""


def graphs(model: str, split: str) -> list[GraphFile]:
    place = "layout:xla:random" if MODELS[model].kind == "layout" else "tile:xla"
    return find_graphs(SAMPLE, collections=(collection_named(place),), splits=(split,))


def recipe_of(model: str, *settings: str, device: str) -> Recipe:
    steps = {"steps": N_STEPS, "warmup_steps": 4, "checkpoint_every": 10}
    keys = [f"{model}.training.{key}={value}" for key, value in steps.items()]
    recipe = "cpu" if model == SAGE else "smoke"
    return load_recipe(recipe, [f"accelerator={device}", *keys, *settings])


def train(
    folder: Path, *settings: str, model: str = SAGE, device: str = "auto", resume: bool = False
) -> None:
    files = graphs(model, "train")[:6]
    job = TrainJob(model, recipe_of(model, *settings, device=device), files, 0, folder)
    train_model(job, files[0].collection, resume=resume)


def weights(folder: Path) -> bytes:
    return (folder / WEIGHTS).read_bytes()


def scores(folder: Path, model: str = SAGE) -> np.ndarray:
    return load_model(folder).score(read_graph(graphs(model, "valid")[0]))


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert expected.std() > 0
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_training_on_a_gpu_gives_the_scores_of_the_cpu(name: str, tmp_path: Path) -> None:
    settings = [f"{name}.training.precision=float32", f"{name}.training.steps=6"]
    if name == "tgraph":  # a GPU draws other random numbers for dropout
        settings.append("tgraph.dropout=0")
    for device in ("auto", "cpu"):
        train(tmp_path / device, *settings, model=name, device=device)
    on_cpu = scores(tmp_path / "cpu", name)
    assert_close(scores(tmp_path / "auto", name), on_cpu, CLOSE)
    ranker = MODELS[name].load(tmp_path / "cpu", recipe_of(name, *settings, device="auto"))
    assert device_of(ranker.model).type == "cuda"  # type: ignore[attr-defined]
    assert_close(ranker.score(read_graph(graphs(name, "valid")[0])), on_cpu, 1e-4)


@pytest.mark.parametrize(
    ("per_step", "keys"),
    [(1, ()), (2, ()), (1, ("dropout=0.2",)), (1, ("dropout=0.2", "training.precision=float16"))],
)
def test_recorded_steps_give_the_bytes_of_plain_ones(
    per_step: int, keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [f"{SAGE}.{key}" for key in (f"graphs_per_step={per_step}", *keys)]
    train(tmp_path / "recorded", *settings)
    monkeypatch.setattr(network, "recorded_steps", lambda *_: None)
    train(tmp_path / "plain", *settings)
    if per_step == 1:
        assert weights(tmp_path / "recorded") == weights(tmp_path / "plain")
    assert_close(scores(tmp_path / "recorded"), scores(tmp_path / "plain"), CLOSE)


def test_killed_training_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "killed"), "begin"]
    child = subprocess.Popen(command)
    checkpoint = tmp_path / "killed" / CHECKPOINT
    while child.poll() is None and not checkpoint.exists():
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert checkpoint.exists() and not (tmp_path / "killed" / WEIGHTS).exists()
    train(tmp_path / "killed", resume=True)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")


def test_two_processes_share_one_card(tmp_path: Path) -> None:
    train(tmp_path / "alone")
    folders = [tmp_path / "one", tmp_path / "two"]
    children = [
        subprocess.Popen([sys.executable, "-c", COMMAND, str(folder), "begin"], env={**os.environ})
        for folder in folders
    ]
    assert [child.wait(120) for child in children] == [0, 0]
    assert {weights(folder) for folder in folders} == {weights(tmp_path / "alone")}


def test_training_still_works_after_an_out_of_memory_error(tmp_path: Path) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((0.4 * 2**30) / total)
    large = "cross_config_sage.hidden=1024", "cross_config_sage.configs_per_step=4096"
    try:
        with pytest.raises(PipelineError, match=r"out of GPU memory.*halve one of.*hidden"):
            train(tmp_path / "large", *large)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    train(tmp_path / "small")
    assert weights(tmp_path / "small")


def test_half_precision_trains_and_ranks(tmp_path: Path) -> None:
    train(tmp_path / "half", "cross_config_sage.training.precision=float16")
    assert np.isfinite(scores(tmp_path / "half")).all()
