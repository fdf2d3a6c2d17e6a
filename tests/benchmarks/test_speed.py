"""The plain model and ours compute the same, and the benchmarks of speed run without a GPU."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_measures import moved_bytes
from benchmarks.plain_pyg import plain_copy, plain_names
from common.errors import UsageError
from common.settings import ROOT
from data.graphs.graph import LayoutGraph
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import layout_inputs

CONFIGS = [
    CrossConfigSageConfig(hidden=16, blocks=blocks, cross_config=cross, channel_reduction=reduction)
    for blocks, cross, reduction in [(1, True, 8), (2, True, 1), (3, True, 8), (2, False, 8)]
]


@pytest.mark.parametrize("rule", ["hops-1", "hops-2", "none"])
@pytest.mark.parametrize("config", CONFIGS)
def test_scores_and_gradients_equal_the_plain_models(
    config: CrossConfigSageConfig, rule: str, layout_graph: LayoutGraph
) -> None:
    torch.manual_seed(0)
    ours = CrossConfigSage(config)
    plain = plain_copy(ours)
    with torch.no_grad():  # a temperature of 1 would hide mistakes
        for name, parameter in [*ours.named_parameters(), *plain.named_parameters()]:
            if name.endswith("log_temperature"):
                parameter.fill_(-0.4)
    scaler = fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")
    inputs = layout_inputs(layout_graph, rule=rule, scaler=scaler)
    target = torch.linspace(-1, 3, 9)
    scores = ours(inputs, np.arange(9))
    expected = plain(inputs, np.arange(9))
    assert expected.std() > 1e-4
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    (scores * target).sum().backward()
    (expected * target).sum().backward()
    gradients = plain_names({name: one.grad for name, one in ours.named_parameters()})
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        difference = (gradients[name] - parameter.grad).norm()
        assert difference < 1e-3 * parameter.grad.norm() + 1e-5, name


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
    assert all(f"\n{name} {{'cells': " in f"\n{done.stdout}" for name in gpu.NAMES)


def test_each_part_is_written_as_it_ends_and_a_second_call_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = {"card": "T4"}
    monkeypatch.setattr(gpu, "versions", lambda: facts)
    monkeypatch.setattr(gpu, "PAGES", tmp_path / "pages")
    monkeypatch.setattr(gpu, "PARTS_HERE", tmp_path / "parts.json")
    monkeypatch.setattr(gpu, "MEASURED_HERE", tmp_path / "steps.json")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    measured = list[str]()

    def apart(name: str, _: float) -> gpu.Row:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(name)
        cells = [1.0, 2.0] if name == "ceilings" else ["1.00"] * 8
        return {"fault": "not done after 9 s"} if len(measured) == 2 else {"cells": cells}

    monkeypatch.setattr(gpu, "measured_apart", apart)
    with pytest.raises(KeyboardInterrupt):
        gpu.main([])
    assert "not done after 9 s" in (tmp_path / "gpu.md").read_text()
    del measured[2]
    with pytest.raises(KeyboardInterrupt):
        gpu.main([])
    assert measured == [*gpu.NAMES[:2], gpu.NAMES[1]]


def test_the_packages_of_a_bare_gpu_machine_suffice() -> None:
    missing = "polars", "lightgbm", "optuna", "plotly", "kagglesdk"
    code = f"import sys\nsys.modules.update(dict.fromkeys({missing}))\nimport benchmarks.gpu"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
