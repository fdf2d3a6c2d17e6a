"""What is said of a GPU that is used, lies idle, is not supported or is too small."""

import logging
import os
import re
from dataclasses import replace

import pytest
import torch

from common.errors import PipelineError
from models.config.recipe import Recipe, load_recipe
from models.training.gpu import TRAINING_KEYS, Gpu, gpu_here, memory_told, tell_device, why_unused

IDLE = Gpu("550.54.15", "13.0", usable=False)
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100f", "sm_103a", "compute_120")
T4 = Gpu("580.65", "13.0", True, "NVIDIA T4", (7, 5), 15_828_320_256, ARCHITECTURES)
NAMED = "NVIDIA T4 (compute capability 7.5, 14.7 GiB, driver 580.65)"


def recipe_of(*sets: str) -> Recipe:
    return load_recipe("smoke", sets)


def test_the_gpu_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    facts = {"device": NAMED, "cuda": "13.0", "precision": "float16, float32", "tf32": True}
    assert tell_device(recipe_of(), T4) == facts
    trees = ["layout.models=[layout_linear]", "tile.models=[tile_linear]", "threads=1"]
    for sets in (["accelerator=cpu"], trees):
        assert tell_device(recipe_of(*sets), T4) == {"device": "CPU"}
    assert caplog.messages == [f"device: {NAMED}", "device: CPU, 1 thread", "device: CPU, 1 thread"]
    assert recipe_of("threads=0").n_threads == len(os.sched_getaffinity(0))


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
            tell_device(recipe_of(), card)


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
        assert tell_device(recipe_of(f"accelerator={accelerator}"), gpu) == {"device": "CPU"}
    warned = f"WARNING: this machine's GPU is not used: {why_unused(gpu, visible)}"
    assert caplog.messages == ["device: CPU, 1 thread", warned, "device: CPU, 1 thread"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA GPU")
def test_a_machine_without_a_gpu_has_none(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # nor nvidia-smi
    assert gpu_here() is None


def test_a_gpu_that_is_full_names_the_keys_to_halve() -> None:
    told = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.20 GiB free"
    config = recipe_of().cross_config_sage
    with (
        pytest.raises(PipelineError) as raised,
        memory_told("train a", "cross_config_sage", config, TRAINING_KEYS),
    ):
        raise torch.OutOfMemoryError(f"{told}. Process 7 has 13.5 GiB memory in use.")
    assert str(raised.value) == (
        f"train a: out of GPU memory: {told}; halve one of cross_config_sage.configs_per_step "
        "(now 16), cross_config_sage.hidden (now 16)"
    )
