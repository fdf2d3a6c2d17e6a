"""Costs of training steps: measured on a card, or computed from the bytes that a step moves."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import PipelineError, UsageError
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS
from pipeline.planning import costs as step_costs
from pipeline.planning.costs import (
    CARDS,
    HOST_MS,
    NETWORK_COSTS,
    Step,
    StepCosts,
    StepTimes,
    find_step_costs,
    step_of,
)

MODEL = "cross_config_sage"
RECIPE = load_recipe("smoke", [f"{MODEL}.configs_per_step=128", f"{MODEL}.hidden=128"])
TABLE = {
    "card": "NVIDIA A100-SXM4-80GB",
    "steps": [
        {"nodes": 100, "step_ms": 20.0, "host_ms": 20.0, "recorded": True},
        {"nodes": 1000, "step_ms": 30.0, "host_ms": 10.0, "recorded": True},
        {"nodes": 2000, "step_ms": 36.0, "host_ms": 10.0, "recorded": True},
        {"nodes": 1000, "step_ms": 44.0, "host_ms": 44.0, "recorded": False},
    ],
}
for row in TABLE["steps"]:
    row |= {"model": MODEL, "configs": 128, "hidden": 128, "precision": "bfloat16"}


@pytest.fixture(autouse=True)
def _without_a_gpu_or_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(step_costs, "MEASURED_HERE", tmp_path / "none.json")


def step(nodes: float, *, n_graphs: int = 1) -> Step:
    return Step(n_graphs, n_graphs * np.array([nodes * 128.0 * 128]), 128)


def milliseconds(card: str, nodes: float, recipe: Recipe = RECIPE) -> tuple[float, float]:
    costs = StepCosts(CARDS[card], StepTimes.model_validate(TABLE))
    kernels_ms, host_ms = costs.step_ms(recipe, MODEL, step(nodes))
    return float(kernels_ms[0]), float(host_ms[0])


@pytest.mark.parametrize(
    ("nodes", "kernels_ms", "host_ms"),
    [(1000, 30.0, 10.0), (1500, 33.0, 10.0), (4000, 72.0, 10.0), (500, 15.0, 15.6), (100, 3, 20)],
)
def test_steps_of_the_measured_card_are_interpolated(
    nodes: int, kernels_ms: float, host_ms: float
) -> None:
    assert milliseconds("a100", nodes) == pytest.approx((kernels_ms, host_ms), rel=1e-2)


@pytest.mark.parametrize(
    ("nodes", "hidden", "expected_ms"),
    [(12_911, 256, 108), (12_911, 128, 49), (5_758, 256, 48), (5_758, 128, 22)],
)
def test_a_step_on_a_t4_takes_the_time_of_its_bytes(
    nodes: int, hidden: int, expected_ms: float
) -> None:
    dropout = 0.2 if hidden == 256 else 0.0
    sets = [f"{MODEL}.hidden={hidden}", f"{MODEL}.dropout={dropout}"]
    recipe, costs = load_recipe("leaderboard", sets), find_step_costs("t4", None)
    mean = step_of(recipe, MODEL, np.array([float(nodes)]), np.array([1000.0]))
    kernels_ms, _ = costs.step_ms(recipe, MODEL, mean)
    assert kernels_ms[0] == pytest.approx(expected_ms, rel=0.15)
    assert "computed" in costs.source and "250 GB/s of the t4" in costs.source


def test_steps_that_cannot_be_recorded_have_the_longer_host_time() -> None:
    dropped = load_recipe("smoke", [f"{MODEL}.dropout=0.2", f"{MODEL}.hidden=128"])
    recorded, plain = milliseconds("a100", 1000), milliseconds("a100", 1000, dropped)
    assert (recorded[1], plain[1]) == (10.0, 44.0)
    # Dropout moves more bytes as well.
    assert recorded[0] < plain[0] < 1.2 * recorded[0]
    # A T4 has no bfloat16, and float16 is not recorded.
    assert milliseconds("t4", 1000)[1] == 44.0


def test_float32_moves_twice_the_bytes_and_old_cards_have_no_fused_kernels() -> None:
    exact = load_recipe("smoke", [f"{MODEL}.training.precision=float32"])
    assert milliseconds("a100", 1000, exact)[0] == pytest.approx(36)
    t4, p100 = (milliseconds(card, 5000)[0] * CARDS[card].gb_s for card in ("t4", "p100"))
    cost = NETWORK_COSTS[MODEL]
    assert p100 / t4 == pytest.approx(cost.plain_moved / cost.moved)


@pytest.mark.parametrize("model", [name for name, entry in MODELS.items() if entry.network])
def test_time_and_memory_grow_with_the_values_of_a_step(model: str) -> None:
    recipe = load_recipe("smoke", [f"{model}.hidden=64"])
    for card in (None, CARDS["t4"]):
        costs = StepCosts(card, StepTimes(card="none", steps=()))
        one, two = step(1e6), step(2e6)
        assert 2 * costs.step_ms(recipe, model, one)[0] == costs.step_ms(recipe, model, two)[0]
        assert 2 * costs.peak_bytes(recipe, model, one) == costs.peak_bytes(recipe, model, two)


def test_only_graphs_that_are_not_joined_are_launched_one_by_one() -> None:
    costs, recipe = StepCosts(CARDS["h100"], StepTimes(card="none", steps=())), load_recipe("smoke")
    launches = {
        name: costs.step_ms(recipe, name, step(10, n_graphs=4))[1][0] / HOST_MS
        for name in ("cross_config_sage", "tgraph", "late_fusion_sage", "baseline_gcn")
    }
    assert list(launches.values()) == [1, 1, 1, 4]


def test_memory_of_a_large_step_is_that_of_an_h100() -> None:
    """A step of 5,000 nodes needed 1.71 GiB with kernels, 4.72 GiB without them in float32."""
    costs, recipe = find_step_costs("h100", None), load_recipe("leaderboard-small")
    assert costs.peak_bytes(recipe, MODEL, step(5000)) == pytest.approx(1.71 * 2**30, rel=0.2)
    sets = [f"{MODEL}.fused=false", f"{MODEL}.training.precision=float32"]
    plain = load_recipe("leaderboard-small", sets)
    assert costs.peak_bytes(plain, MODEL, step(5000)) == pytest.approx(4.72 * 2**30, rel=0.2)


def test_the_file_of_steps_decides_the_card(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    file.write_text(json.dumps(TABLE))
    costs = find_step_costs(None, file)
    assert costs.card == CARDS["a100"] and costs.source == f"measured on {TABLE['card']}"
    assert find_step_costs("h100", file).card == CARDS["h100"]
    assert find_step_costs(None, None).card is None
    assert "one thread" in find_step_costs("none", None).source


def test_a_damaged_file_or_an_unknown_card_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "steps.json"
    for text, told in (("{", "Invalid JSON"), ('{"card": "x"}', "key 'steps': Field required")):
        file.write_text(text)
        with pytest.raises(PipelineError, match=f"steps.json: cannot be read: .*{told}"):
            find_step_costs("t4", file)
    file.write_text('{"card": "Radeon", "steps": []}')
    with pytest.raises(UsageError, match=r"the card Radeon is not known; pass --gpu NAME"):
        find_step_costs(None, file)
