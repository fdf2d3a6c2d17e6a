"""Networks on a GPU: results are those of the CPU, messages, and the type of activations."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import PipelineError, UsageError
from common.machine import granted
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph
from data.tree import GraphFile, find_graphs
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS, TrainJob, load_model
from models.train import train_model
from models.training.device import (
    CPU,
    GPU,
    Gpu,
    by_own_types,
    computing,
    device_of,
    gpu_here,
    precision_on,
    prepare_torch,
    ranking_device,
    storage_dtype,
    tell_device,
    training_device,
    why_unused,
)
from tests.support.command_line import call

NETWORKS = [name for name in MODELS if load_recipe("smoke").training_of(name)]
# A GPU stores activations in 16 bits by itself: values are compared in 32.
STEPS = ("steps=2", "warmup_steps=1", "checkpoint_every=1", "log_every=1", "precision=float32")
IDLE = Gpu("550.54.15", "13.0", usable=False)
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100f", "sm_103a", "compute_120")
T4 = Gpu("580.65", "13.0", True, "NVIDIA T4", (7, 5), 15_828_320_256, ARCHITECTURES)
NAMED = "NVIDIA T4 (compute capability 7.5, 14.7 GiB, driver 580.65)"
A100 = (8, 0)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU")


def recipe_of(name: str, *keys: str, accelerator: str = "auto") -> Recipe:
    """Few steps of one network, without dropout, which a GPU draws by itself.

    Fused kernels take real memory: tests/models/layout/test_fused_ops.py has them.
    """
    sets = [f"{name}.{key}" for key in (*(f"training.{key}" for key in STEPS), *keys)]
    if name == "tgraph":
        sets.append("tgraph.dropout=0")
    if hasattr(getattr(load_recipe("smoke", []), name), "fused"):
        sets.append(f"{name}.fused=false")
    return load_recipe("smoke", [*sets, f"accelerator={accelerator}"])


def files_for(name: str, tree: Path) -> list[GraphFile]:
    files = find_graphs(tree, splits=("train",))
    return [file for file in files if file.collection.kind == MODELS[name].kind]


def job_of(name: str, recipe: Recipe, tree: Path, run_dir: Path) -> TrainJob:
    files = files_for(name, tree)
    own = [file for file in files if file.collection == files[0].collection]
    return TrainJob(name, recipe, own[:3], 0, run_dir)


def train(job: TrainJob) -> None:
    train_model(job, job.files[0].collection, resume=False)


def score(folder: Path, graph: Graph) -> np.ndarray:
    return load_model(folder).score(graph)


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert expected.std() > 0
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


def test_the_accelerator_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert training_device("auto").type == training_device("cuda").type == "cuda"
    assert training_device("cpu") == ranking_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert training_device("auto") == ranking_device("cuda") == CPU
    with pytest.raises(UsageError, match=r"accelerator = cuda: torch finds no CUDA GPU"):
        training_device("cuda")


@pytest.mark.parametrize("words", [["run"], ["train", "--collection", "tile:xla"]])
def test_a_gpu_that_is_not_there_is_said_in_one_line(
    words: list[str], tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ["--data", tiny_tree, "--recipe", "smoke", "--out", tmp_path / "out"]
    printed = call(*words, *arguments, "--set", "accelerator=cuda", expect=2)
    assert printed.startswith("error: accelerator = cuda: torch finds no CUDA GPU")
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


@needs_gpu
@pytest.mark.parametrize("name", NETWORKS)
def test_a_gpu_gives_the_scores_of_the_cpu(name: str, tiny_tree: Path, tmp_path: Path) -> None:
    graph = read_graph(files_for(name, tiny_tree)[0])
    for accelerator in ("cpu", "cuda"):
        recipe = recipe_of(name, accelerator=accelerator)
        train(job_of(name, recipe, tiny_tree, tmp_path / accelerator))
    on_cpu = score(tmp_path / "cpu", graph)
    assert_close(score(tmp_path / "cuda", graph), on_cpu, 1e-3)
    on_gpu = MODELS[name].load(tmp_path / "cpu", recipe_of(name, accelerator="auto"))
    assert device_of(on_gpu.model).type == "cuda"  # type: ignore[attr-defined]
    assert_close(on_gpu.score(graph), on_cpu, 1e-4)


def test_loading_and_ranking_leave_the_callers_torch_alone(tiny_tree: Path, tmp_path: Path) -> None:
    name = "cross_config_sage"
    train(job_of(name, recipe_of(name, "training.steps=1"), tiny_tree, tmp_path))
    graph = read_graph(files_for(name, tiny_tree)[0])

    def state() -> tuple[object, ...]:
        return (
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.sparse.check_sparse_tensor_invariants.is_enabled(),
            torch.get_rng_state().tolist(),
        )

    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        before = state()
        load_model(tmp_path).score(graph)
        assert state() == before
    finally:
        prepare_torch(seed=0, threads=threads)


def test_the_gpu_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    facts = {"device": NAMED, "cuda": "13.0", "precision": "float16, float32", "tf32": True}
    assert tell_device(load_recipe("smoke"), T4) == facts
    trees = ["layout.models=[layout_linear]", "tile.models=[tile_linear]", "threads=1"]
    for sets in (["accelerator=cpu"], trees):
        assert tell_device(load_recipe("smoke", sets), T4) == {"device": "CPU"}
    assert caplog.messages == [f"device: {NAMED}", "device: CPU, 1 thread", "device: CPU, 1 thread"]
    assert load_recipe("smoke", ["threads=0"]).n_threads == granted()[0]


@pytest.mark.parametrize(
    ("capability", "supported"),
    [
        *(((6, 0), False), ((7, 0), False), ((7, 5), True), ((8, 9), True), ((9, 0), True)),
        *(((10, 0), True), ((10, 1), True), ((10, 3), True), ((11, 0), False), ((12, 1), True)),
    ],
)
def test_a_gpu_without_code_of_torchs_is_refused(
    capability: tuple[int, int], supported: bool
) -> None:
    card = replace(T4, name="NVIDIA P100", capability=capability)
    assert card.is_supported == supported
    if not supported:
        with pytest.raises(PipelineError, match=r"NVIDIA P100 .*no code for it.*cu126 wheel"):
            tell_device(load_recipe("smoke"), card)


@pytest.mark.parametrize(
    ("gpu", "visible", "why"),
    [
        (IDLE, None, "its driver 550.54.15 is too old for CUDA 13.0 .* 580 or newer: .*cu126"),
        (replace(IDLE, torch_cuda="12.6"), None, "torch cannot start CUDA"),
        (replace(IDLE, torch_cuda="12.6", driver="470.1"), "0", "470.1 is too old .* 525"),
        (replace(IDLE, driver="unknown"), None, "torch cannot start CUDA"),
        (replace(IDLE, torch_cuda=None), None, "built without CUDA"),
        (replace(IDLE, torch_cuda=None), "-1", "CUDA_VISIBLE_DEVICES=-1 hides it"),
    ],
)
def test_a_gpu_that_lies_idle_is_warned_of(
    gpu: Gpu,
    visible: str | None,
    why: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    caplog.set_level(logging.INFO)
    assert re.search(why, why_unused(gpu, visible))
    for accelerator in ("auto", "cpu"):  # who asks for the CPU is not warned
        recipe = load_recipe("smoke", [f"accelerator={accelerator}"])
        assert tell_device(recipe, gpu) == {"device": "CPU"}
    warned = f"WARNING: this machine's GPU is not used: {why_unused(gpu, visible)}"
    assert caplog.messages == ["device: CPU, 1 thread", warned, "device: CPU, 1 thread"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA GPU")
def test_a_machine_without_a_gpu_has_none(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # nor nvidia-smi
    assert gpu_here() is None


def test_auto_is_what_the_device_computes() -> None:
    assert precision_on(CPU, "auto") == torch.float32
    assert precision_on(GPU, "auto", version=T4.capability) == torch.float16
    assert precision_on(GPU, "auto", version=A100) == torch.bfloat16
    assert precision_on(GPU, "float32", version=A100) == torch.float32
    with pytest.raises(UsageError, match=r"this GPU, of compute capability 7\.5"):
        precision_on(GPU, "bfloat16", version=T4.capability)


def test_half_precision_ends_with_the_block() -> None:
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    with computing(CPU, "bfloat16"):
        assert layer(x).dtype == storage_dtype(CPU) == torch.bfloat16
        assert by_own_types(layer.forward)(x).dtype == torch.float32
        with computing(CPU, "float32"):
            assert layer(x).dtype == storage_dtype(CPU) == torch.float32
    assert layer(x).dtype == torch.float32
