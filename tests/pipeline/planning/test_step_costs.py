"""Costs of training steps: timed here, measured on a card, or computed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.errors import PipelineError, UsageError
from models.config.recipe import load_recipe
from models.registry import MODELS
from pipeline.planning import step_costs
from pipeline.planning.step_costs import (
    CARDS,
    HOST_MS,
    StepCosts,
    StepSize,
    StepTimes,
    find_step_costs,
    step_size,
)

MODEL = "cross_config_sage"
RECIPE = load_recipe("smoke", [f"{MODEL}.configs_per_step=128", f"{MODEL}.hidden=128"])
TABLE = {
    "card": "NVIDIA A100-SXM4-80GB",
    "steps": [
        {"nodes": 100, "step_ms": 20.0, "host_ms": 20.0},
        {"nodes": 1000, "step_ms": 30.0, "host_ms": 10.0},
        {"nodes": 2000, "step_ms": 36.0, "host_ms": 10.0},
    ],
}
for step in TABLE["steps"]:
    step |= {"model": MODEL, "configs": 128, "hidden": 128, "precision": "bfloat16"}


@pytest.fixture(autouse=True)
def _without_a_gpu_or_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(step_costs, "MEASURED_HERE", tmp_path / "none.json")


def size(nodes: float) -> StepSize:
    return StepSize(1, nodes, 128, 128)


@pytest.mark.parametrize(
    ("nodes", "card", "milliseconds"),
    [
        (1000, "a100", 30.0),
        (1500, "a100", 33.0),  # between the kernels' 30 and 36 ms
        (4000, "a100", 72.0),
        (500, "a100", 15.6),  # the host: between 20 and 10 ms
        (100, "a100", 20.0),
        (1000, "t4", 30.0 * 2039 / 320),
        (100, "h200", 20.0),  # a faster card does not launch faster
    ],
)
def test_measured_steps_are_interpolated_and_scaled_to_the_bandwidth_of_a_card(
    nodes: int, card: str, milliseconds: float
) -> None:
    costs = StepCosts(RECIPE, CARDS[card], StepTimes.model_validate(TABLE))
    assert costs.step_s(MODEL, size(nodes)) == pytest.approx(milliseconds / 1e3, rel=1e-2)


def test_float32_moves_twice_the_bytes() -> None:
    exact = load_recipe("smoke", [f"{MODEL}.training.precision=float32"])
    costs = StepCosts(exact, CARDS["a100"], StepTimes.model_validate(TABLE))
    assert costs.step_s(MODEL, size(1000)) == pytest.approx(0.036)


def test_a_ranking_takes_a_third_of_a_step_by_size_but_for_the_launches() -> None:
    costs = StepCosts(RECIPE, CARDS["a100"], StepTimes.model_validate(TABLE))
    assert costs.ranking_s(MODEL, size(1000), ratio=2) == pytest.approx(0.02)
    assert costs.ranking_s(MODEL, size(1000), ratio=0.01) == pytest.approx(0.01 / 3)


@pytest.mark.parametrize("model", [name for name, entry in MODELS.items() if entry.network])
def test_a_step_without_measurements_is_computed_and_grows_with_its_size(model: str) -> None:
    recipe = load_recipe("smoke", [f"{model}.hidden=64"])
    costs = StepCosts(recipe, CARDS["t4"], StepTimes(card="none", steps=()))
    small = step_size(recipe, model, 1000, 100)
    one_graph = replace(small, nodes=10, n_graphs=1)
    assert costs.step_s(model, one_graph) == HOST_MS / 1e3
    large = [costs.step_s(model, replace(small, nodes=nodes)) for nodes in (1e6, 2e6)]
    assert large[1] == pytest.approx(2 * large[0], rel=0.05) and large[0] > HOST_MS / 1e3
    peaks = [costs.peak_bytes(model, replace(small, nodes=nodes)) for nodes in (1e6, 2e6)]
    assert peaks[1] == pytest.approx(2 * peaks[0], rel=0.05)
    times = 1 if "fusion" in model else 2  # tile networks keep float32 on a GPU
    on_cpu = StepCosts(recipe).peak_bytes(model, small)
    assert on_cpu == pytest.approx(times * costs.peak_bytes(model, small))


def test_only_graphs_that_are_not_joined_are_launched_one_by_one() -> None:
    costs = StepCosts(load_recipe("smoke"), CARDS["h100"], StepTimes(card="none", steps=()))
    four, host_s = StepSize(4, 10, 16, 16), HOST_MS / 1e3
    expected = {"cross_config_sage": 1, "tgraph": 1, "late_fusion_sage": 1, "baseline_gcn": 4}
    assert {name: costs.step_s(name, four) / host_s for name in expected} == expected


def test_memory_of_a_large_step_is_known_to_a_factor_of_two() -> None:
    """On a GPU a step of 5,000 nodes was counted to hold 2.3 GB in 16 bits."""
    costs = StepCosts(load_recipe("leaderboard-small"), CARDS["h100"])
    assert 1.15e9 < costs.peak_bytes(MODEL, size(5000)) < 4.6e9


def test_a_large_graph_fits_a_t4_with_the_large_recipe() -> None:
    """A float16 tensor of such a step has .49 GiB, and a training holds 4 to 11 of them."""
    costs = StepCosts(load_recipe("leaderboard"), CARDS["t4"])
    gib = costs.peak_bytes(MODEL, StepSize(1, 8000, 128, 256)) / 2**30
    assert 4 * 0.49 < gib < 0.9 * CARDS["t4"].memory_gib


def test_without_a_gpu_a_small_step_is_timed_on_one_thread_and_scaled() -> None:
    costs = find_step_costs(RECIPE, None, None)
    assert costs.card is None and "one thread" in costs.source
    seconds = [costs.step_s(MODEL, size(nodes)) for nodes in (1_000, 40_000)]
    assert seconds[1] == pytest.approx(40 * seconds[0])
    assert 0.01 < seconds[0] < 100
    assert find_step_costs(RECIPE, "none", None).card is None


def test_the_source_says_that_an_estimate_without_a_gpu_may_be_off(tmp_path: Path) -> None:
    costs = find_step_costs(RECIPE, "t4", None)
    assert costs.card == CARDS["t4"] and costs.times is not None
    assert "measured on NVIDIA H100" in costs.source and "off by a factor of 2" in costs.source
    file = tmp_path / "steps.json"
    file.write_text(json.dumps(TABLE))
    assert find_step_costs(RECIPE, None, file).card == CARDS["a100"]
    assert find_step_costs(RECIPE, "h100", file).card == CARDS["h100"]


def test_a_damaged_file_or_an_unknown_card_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    for text, told in (("{", "Invalid JSON"), ('{"card": "x"}', "key 'steps': Field required")):
        file.write_text(text)
        with pytest.raises(PipelineError, match=f"steps.json: cannot be read: .*{told}"):
            find_step_costs(RECIPE, "t4", file)
    file.write_text('{"card": "Radeon", "steps": []}')
    with pytest.raises(UsageError, match=r"the card Radeon is not known; pass --gpu NAME"):
        find_step_costs(RECIPE, None, file)
