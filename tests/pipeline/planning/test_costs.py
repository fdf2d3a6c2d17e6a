"""Costs of training steps: measured on a card, or computed from moved bytes; the command `plan`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.gpu_measures import moved_bytes
from benchmarks.kernels import CARDS as KERNEL_CARDS
from benchmarks.kernels import Card as KernelCard
from benchmarks.kernels import recorded
from common.errors import PipelineError, UsageError
from data.synthetic.graphs import GraphSize, make_layout_graph, sized_graph
from features.scaling import fit_node_scaler
from models.config.recipe import Recipe, load_recipe
from models.layout import fused_ops, node_norm_ops, plain_ops
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.network import sample_loss
from pipeline.planning import costs as step_costs
from pipeline.planning.costs import (
    CARDS,
    CUBLAS_MOVED,
    DROPOUT_MOVED,
    HOST_MS,
    NETWORK_COSTS,
    OVER_NODES,
    Step,
    StepCosts,
    StepTimes,
    find_step_costs,
    step_of,
)
from tests.support.command_line import call

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
    values = n_graphs * np.array([nodes * 128.0 * 128])
    return Step(n_graphs, values, 128, np.ones(1), values)


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
    [(12_911, 256, 136), (12_911, 128, 64), (5_758, 256, 61), (5_758, 128, 28)],
)
def test_a_step_on_a_t4_takes_the_time_of_its_bytes(
    nodes: int, hidden: int, expected_ms: float
) -> None:
    dropout = 0.2 if hidden == 256 else 0.0
    sets = [f"{MODEL}.hidden={hidden}", f"{MODEL}.dropout={dropout}"]
    recipe, costs = load_recipe("leaderboard", sets), find_step_costs("t4", None)
    mean = step_of(recipe, MODEL, np.array([float(nodes)]), np.array([1000.0]))
    kernels_ms, _ = costs.step_ms(recipe, MODEL, mean)
    assert kernels_ms[0] == pytest.approx(expected_ms, rel=0.05)
    assert "computed" in costs.source and "250 GB/s of the t4" in costs.source


def test_steps_with_dropout_and_in_float16_are_recorded() -> None:
    dropped = load_recipe("smoke", [f"{MODEL}.dropout=0.2", f"{MODEL}.hidden=128"])
    recorded, with_dropout = milliseconds("a100", 1000), milliseconds("a100", 1000, dropped)
    assert recorded[1] == with_dropout[1] == milliseconds("t4", 1000)[1] == 10.0
    # Dropout moves more bytes.
    assert recorded[0] < with_dropout[0] < 1.2 * recorded[0]


def test_float32_moves_twice_the_bytes() -> None:
    exact = load_recipe("smoke", [f"{MODEL}.training.precision=float32"])
    # Kernels have no products in float32.
    moved = NETWORK_COSTS[MODEL].moved
    assert milliseconds("a100", 1000, exact)[0] == pytest.approx(
        36 * (moved + CUBLAS_MOVED) / moved
    )


def test_a_norm_over_nodes_moves_and_keeps_more() -> None:
    costs, sets = StepCosts(CARDS["t4"], StepTimes(card="none", steps=())), [f"{MODEL}.hidden=64"]
    channels, nodes = (
        load_recipe("smoke", [*sets, f"{MODEL}.norm={norm}"]) for norm in ("channels", "nodes")
    )
    times = [costs.step_ms(recipe, MODEL, step(1000))[0][0] for recipe in (channels, nodes)]
    peaks = [costs.peak_bytes(recipe, MODEL, step(1000)) for recipe in (channels, nodes)]
    assert 2.5 < times[1] / times[0] < 3.1 and 1.3 < peaks[1] / peaks[0] < 1.8


# From compute capability 8.0 on, kernels move fewer tensors than when the times of an H100 were
# measured. `plan` keeps the number that belongs to these times.
SAVED = {"channels": 40, "nodes": 26}


def moved_by_a_step(sets: Sequence[str], card: KernelCard, n_nodes: int) -> tuple[int, int]:
    """Count the bytes of a step without its kernels, and those of a tensor of all nodes."""
    recipe = load_recipe("leaderboard", [f"{MODEL}.{key}" for key in ("hidden=128", *sets)])
    graph = make_layout_graph(sized_graph(GraphSize(n_nodes, n_nodes // 20, 200)))
    network = CrossConfigSage(recipe.cross_config_sage).train()
    scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
    inputs = network.reader(recipe.features, scaler)(graph)

    def counted(into: Tensor, grad: Tensor, x: Tensor) -> None:
        # A GPU computes this product in the type of its factors. A processor casts them.
        counter.add((grad, x, torch.empty_like(into)))

    stubs = pytest.MonkeyPatch.context()
    with recorded(card, "bfloat16", 128), moved_bytes() as counter, stubs as monkeypatch:
        monkeypatch.setattr(plain_ops, "SLICE_BYTES", plain_ops.DEVICE_SLICE_BYTES)
        monkeypatch.setattr(plain_ops, "HAS_ONEDNN", False)
        for module in (fused_ops, node_norm_ops, plain_ops):
            monkeypatch.setattr(module, "add_weight_gradient", counted)
        loss = sample_loss(network, inputs, np.arange(128))
        with torch.autocast("cpu", enabled=False):
            loss.backward()
    return counter.total, 128 * 128 * 2 * len(inputs.opcode)


@pytest.mark.parametrize("norm", ["channels", "nodes"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("capability", [75, 80])
def test_tensors_that_a_step_moves_are_counted(norm: str, dropout: float, capability: int) -> None:
    card = next(card for card in KERNEL_CARDS if card.capability == capability)
    sets = [f"norm={norm}", f"dropout={dropout}"]
    (few, few_unit), (many, many_unit) = (moved_by_a_step(sets, card, n) for n in (500, 1000))
    cost = NETWORK_COSTS[MODEL + OVER_NODES * (norm == "nodes")]
    of_card = CUBLAS_MOVED if capability < 80 else -SAVED[norm]
    expected = cost.moved + of_card + DROPOUT_MOVED * (dropout > 0)
    assert (many - few) / (many_unit - few_unit) == pytest.approx(expected, rel=0.03)


def test_a_step_of_a_large_graph_has_fewer_configs() -> None:
    recipe = load_recipe("leaderboard", [f"{MODEL}.step_tensor_mib=512", "features.prune=none"])
    sizes = np.array([100.0, 14_966, 41_541]), np.array([1000.0, 1000, 1000])
    values = step_of(recipe, MODEL, *sizes).values
    assert list(values / sizes[0] / 256) == [128, 64, 16]
    assert max(values) * 2 <= 512 * 2**20


def test_layout_graphs_are_launched_one_by_one_and_kernels_together() -> None:
    costs, recipe = StepCosts(CARDS["h100"], StepTimes(card="none", steps=())), load_recipe("smoke")
    launches = {
        name: costs.step_ms(recipe, name, step(10, n_graphs=4))[1][0] / HOST_MS
        for name in ("cross_config_sage", "tgraph", "late_fusion_sage", "baseline_gcn")
    }
    assert list(launches.values()) == [4, 4, 1, 4]


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
    for text, told in (("{", "not JSON"), ('{"card": "x"}', "key 'steps': expected a value")):
        file.write_text(text)
        with pytest.raises(PipelineError, match=f"steps.json: cannot be read: .*{told}"):
            find_step_costs("t4", file)
    file.write_text('{"card": "Radeon", "steps": []}')
    with pytest.raises(UsageError, match=r"the card Radeon is not known; pass --gpu NAME"):
        find_step_costs(None, file)


SMALL = ("--recipe", "smoke", "--set", "cross_config_sage.hidden=8")


def test_each_factor_of_the_hours_is_in_the_table() -> None:
    made = json.loads(call("plan", "--recipe", "leaderboard", "--gpu", "t4", "--json"))
    for row in made["models"]:
        if row["on_gpu"]:
            slower_ms = max(row["step_ms"], row["host_ms"])
            assert row["train_hours"] * 3.6e6 >= 0.99 * row["steps"] * slower_ms
    networks = [row for row in made["models"] if row["on_gpu"]]
    hours = sum(row["runs"] * row["train_hours"] + row["rank_hours"] for row in networks)
    assert made["gpu_hours"] == pytest.approx(hours)
    text = call("plan", *SMALL, "--gpu", "t4")
    assert re.search(r"^recipe +\S+, \d seeds$", text, re.MULTILINE)
    for line in ("raw data", "store", "run files"):
        assert re.search(rf"^{line} +[\d.]+ [GM]iB$", text, re.MULTILINE)
    assert "computed: bytes of a step / 250 GB/s of the t4" in text


def test_a_network_that_does_not_fit_the_card_has_keys_to_halve() -> None:
    text = call("plan", "--recipe", "reference", "--gpu", "t4")
    key = 'collection."layout:xla:random".tgraph.configs_per_step (now 128)'
    told = rf"^tgraph needs \d+ GiB of 14\.6 GiB to train: halve one of\n  {re.escape(key)}\n"
    assert re.search(told, text, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--gpu", "None"), "there is no GPU; pass --gpu NAME"),
        (("--set", "accelerator=cpu"), "the recipe uses no GPU"),
    ],
)
def test_two_gpus_that_are_not_there_are_one_line(words: tuple[str, ...], reason: str) -> None:
    text = call("plan", "--gpus", 2, *words, expect=2)
    assert f"--gpus 2: {reason}" in text and text.count("\n") == 1
