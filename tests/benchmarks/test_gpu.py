"""The benchmark of a GPU, without one."""

import subprocess
import sys

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_measures import moved_bytes
from common.errors import UsageError
from common.settings import ROOT


def test_moved_bytes_count_inputs_and_results_but_no_views() -> None:
    x = torch.ones(4, 8)
    with moved_bytes() as moved:
        transposed = torch.add(x, 1).T
    assert transposed.shape == (8, 4)
    assert moved.total == 2 * x.nbytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA GPU")
def test_without_a_gpu_it_ends_with_one_line() -> None:
    with pytest.raises(UsageError, match="torch finds no CUDA GPU"):
        gpu.main([])


@pytest.mark.slow
def test_every_part_runs_in_a_tiny_size_on_a_cpu() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--dry"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    parts = "ceilings", "steps", "ranking", "training", "top"
    assert all(f"\n{part}: " in f"\n{done.stdout}" for part in parts)


def test_the_packages_of_a_bare_gpu_machine_suffice() -> None:
    missing = "polars", "lightgbm", "optuna", "plotly", "kagglesdk"
    code = f"import sys\nsys.modules.update(dict.fromkeys({missing}))\nimport benchmarks.gpu"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
