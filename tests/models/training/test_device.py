"""The choice of a device, its messages, and the type of activations."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from common.errors import PipelineError, UsageError
from common.machine import granted
from data.graph_store.stored_graph import read_graph
from data.tree import GraphFile
from models.config.recipe import load_recipe
from models.registry import TrainJob, load_model
from models.train import train_model
from models.training.device import (
    CPU,
    GPU,
    computing,
    has_code_for,
    log_device,
    network_device,
    precision_on,
    prepare_torch,
    storage_dtype,
    without_autocast,
)

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100f", "sm_103a", "compute_120")
T4, A100 = (7, 5), (8, 0)


def test_the_accelerator_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (network_device("auto"), network_device("cpu")) == (GPU, CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert network_device("auto") == CPU


def test_loading_and_ranking_leave_the_callers_torch_alone(
    layout_files: list[GraphFile], tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", ["cross_config_sage.training.steps=1"])
    job = TrainJob("cross_config_sage", recipe, layout_files[:1], 0, tmp_path)
    train_model(job, layout_files[0].collection, resume=False)
    graph = read_graph(layout_files[0])

    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        random_state = torch.get_rng_state()
        load_model(tmp_path).score(graph)
        assert torch.get_num_threads() == 3
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.equal(torch.get_rng_state(), random_state)
    finally:
        prepare_torch(seed=0, threads=threads)


@pytest.fixture
def t4(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A T4 that torch finds."""
    card = SimpleNamespace(name="NVIDIA T4", major=7, minor=5, total_memory=15_828_320_256)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ARCHITECTURES)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return card


def test_the_gpu_is_named(t4: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    named = "NVIDIA T4 (compute capability 7.5, 14.7 GiB)"
    facts = {"device": named, "cuda": "13.0", "precision": "float16, float32", "tf32": True}
    assert log_device(load_recipe("smoke")) == facts
    trees = ["layout.models=[layout_linear]", "tile.models=[tile_linear]", "threads=1"]
    for sets in (["accelerator=cpu"], trees):
        assert log_device(load_recipe("smoke", sets)) == {"device": "CPU"}
    assert caplog.messages == [f"device: {named}", "device: CPU, 1 thread", "device: CPU, 1 thread"]
    assert load_recipe("smoke", ["threads=0"]).n_threads == granted()[0]
    t4.major, t4.minor = 6, 0
    with pytest.raises(PipelineError, match=r"NVIDIA T4 .*no code for it.*cu126 wheel"):
        log_device(load_recipe("smoke"))


@pytest.mark.parametrize(
    ("capability", "supported"),
    [
        *(((6, 0), False), ((7, 0), False), ((7, 5), True), ((8, 9), True), ((9, 0), True)),
        *(((10, 0), True), ((10, 1), True), ((10, 3), True), ((11, 0), False), ((12, 1), True)),
    ],
)
def test_code_for_a_gpu_is_that_of_its_major_version_or_ptx(
    capability: tuple[int, int], supported: bool
) -> None:
    assert has_code_for(capability, ARCHITECTURES) == supported


def test_auto_is_what_the_device_computes() -> None:
    assert precision_on(CPU, "auto") == torch.float32
    assert precision_on(GPU, "auto", version=T4) == torch.float16
    assert precision_on(GPU, "auto", version=A100) == torch.bfloat16
    assert precision_on(GPU, "float32", version=A100) == torch.float32
    with pytest.raises(UsageError, match=r"this GPU, of compute capability 7\.5"):
        precision_on(GPU, "bfloat16", version=T4)


def test_half_precision_ends_with_the_block() -> None:
    layer, x = torch.nn.Linear(3, 3), torch.randn(2, 3)
    with computing(CPU, "bfloat16"):
        assert layer(x).dtype == storage_dtype(CPU) == torch.bfloat16
        assert without_autocast(layer.forward)(x).dtype == torch.float32
        with computing(CPU, "float32"):
            assert layer(x).dtype == storage_dtype(CPU) == torch.float32
    assert layer(x).dtype == torch.float32
