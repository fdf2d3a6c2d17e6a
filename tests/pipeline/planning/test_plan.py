"""Costs of a recipe, from what is counted of its networks."""

from dataclasses import replace
from math import inf

import pytest

from common.errors import UsageError
from data.official.published import PartSize
from features.pruning import RULES
from features.statistics.configs import ALL_STATISTICS
from models.config.recipe import load_recipe
from models.registry import model_entry
from pipeline.planning.cards import CARDS, CONTEXT_MIB, THREAD, Card, Machine, card_named
from pipeline.planning.counts import Counts
from pipeline.planning.made_up import counted_step
from pipeline.planning.plan import (
    CACHE_MIB,
    COUNTED,
    KEPT_PER_CONFIGURABLE,
    calibrated,
    card_memory,
    kept_nodes,
    make_plan,
    min_run_s,
    peak_mib,
    ranking_s,
    stage_costs,
    training_s,
)

LAYOUT, TILE = "layout:xla:random", "tile:xla"
SLOW = Machine(Card("slow", 1e6, inf, inf, 0.0, memory_gib=16.0))


def part(
    collection: str, split: str, graphs: int, *, nodes: int = 1000, configs: int = 100
) -> PartSize:
    return PartSize(
        collection, split, graphs, nodes, nodes, 2 * nodes, configs, configs, 0.0, "files"
    )


SIZES = [
    part(LAYOUT, "train", 10),
    part(LAYOUT, "valid", 2),
    part(LAYOUT, "test", 3),
    part(TILE, "train", 20, nodes=40),
    part(TILE, "test", 5, nodes=40),
]
RECIPE = load_recipe(
    "cpu",
    [
        "seeds=[0,1,2]",
        "layout.models=[cross_config_sage, baseline_gcn, layout_boosting]",
        "tile.models=[late_fusion_sage, tile_linear]",
        "cross_config_sage.hidden=8",
        "cross_config_sage.training.steps=36",
        "baseline_gcn.hidden=8",
        "baseline_gcn.training.steps=72",
        "baseline_gcn.graphs_per_step=2",
        "late_fusion_sage.kernels_per_step=2",
        "late_fusion_sage.training.steps=18",
        "layout_boosting.num_boost_round=40",
    ],
)
MODEL = "cross_config_sage"
WORK = kept_nodes("hops-1", 1000) / COUNTED.nodes
COUNTS, ON_THREAD = (
    counted_step(
        model_entry(RECIPE, MODEL), RECIPE.cross_config_sage, replace(COUNTED, configs=64), card
    )
    for card in (SLOW.card, None)
)


def hours(stage: str, model: str, collection: str, machine: Machine = SLOW) -> float:
    """Return those of one seed."""
    found = [
        cost.seconds / 3600
        for cost in stage_costs(RECIPE, SIZES, machine)
        if (cost.stage, cost.model, cost.collection) == (stage, model, collection)
    ]
    assert found == 3 * found[:1]
    return found[0]


def test_the_longest_of_bytes_operations_and_launches_decides() -> None:
    card = Card("made up", bytes_per_s=10, flops=100, half_flops=400, launch_s=1)
    assert card.seconds(Counts(kernels=3, bytes=40, flops=100)) == 4
    assert card.seconds(Counts(kernels=5, bytes=40)) == 5
    assert card.seconds(Counts(bytes=40, flops=900, half_flops=400)) == 5 + 1
    assert card.seconds(Counts(kernels=5, bytes=40), work=2) == 8


def test_hours_are_those_of_what_was_counted() -> None:
    step_s = COUNTS.bytes * WORK / 1e6
    assert hours("train", MODEL, LAYOUT) == pytest.approx(36 * step_s / 3600)
    other = Machine(replace(CARDS["t4"], bytes_per_s=1e5))
    assert hours("train", MODEL, LAYOUT, other) == pytest.approx(10 * 36 * step_s / 3600)
    on_thread = max(ON_THREAD.bytes / THREAD.bytes_per_s, ON_THREAD.flops / THREAD.flops) * WORK
    on_thread = max(on_thread, ON_THREAD.kernels * THREAD.launch_s)
    assert hours("train", MODEL, LAYOUT, Machine(None)) == pytest.approx(36 * on_thread / 3600)
    assert hours("train", "tile_linear", TILE) == pytest.approx(20 * 0.035 / 3600)
    trees = 10 * 1000 * 100 * 3.2e-8 + 40 * 1.6e-6 * 10 * 100
    assert hours("train", "layout_boosting", LAYOUT) == pytest.approx(trees / 3600)
    assert hours("rank", "layout_boosting", LAYOUT) == pytest.approx(5 * 1e5 * 8e-9 / 3600)


def test_a_plan_adds_seeds_up() -> None:
    plan = make_plan(RECIPE, SIZES, SLOW)
    layout = plan.collections[0]
    assert layout.collection == LAYOUT
    networks = (MODEL, "baseline_gcn")
    for stage in ("train", "rank"):
        by_hand = sum(hours(stage, model, LAYOUT) for model in networks)
        assert layout.gpu_hours[stage] == pytest.approx(3 * by_hand)
    trees = hours("train", "layout_boosting", LAYOUT)
    assert layout.cpu_hours["train"] == pytest.approx(3 * trees)
    assert layout.cpu_hours["prepare"] == pytest.approx(15 * 1e5 * 2.5e-9 / 3600)
    n_bytes = 10 * 1e2 * 3 * len(ALL_STATISTICS["layout"])
    assert layout.peak_mib["train layout_boosting"] == pytest.approx(n_bytes / 2**20)
    assert layout.disk_bytes["raw"] == pytest.approx(15 * 0.11 * 1000 * 100)
    # Nine members, the blend and the floor; five graphs of 100 configs are ranked.
    assert layout.disk_bytes["run"] == pytest.approx(11 * 500 * 46)
    alone = make_plan(RECIPE, SIZES, Machine(None))
    assert alone.total("gpu_hours") == 0
    assert alone.total("cpu_hours") > plan.total("cpu_hours")


def test_a_run_takes_at_least_its_longest_training_or_an_even_share_of_all_work() -> None:
    assert RECIPE.threads == 1
    for card in (SLOW.card, None):
        few, many = Machine(card, 2, 3), Machine(card, 1000, 2000)
        plan = make_plan(RECIPE, SIZES, few)
        shares = plan.total("gpu_hours") / 2, plan.total("cpu_hours") / 3
        assert plan.min_run_hours == pytest.approx(max(shares))
        costs = stage_costs(RECIPE, SIZES, few)
        longest_s = max(cost.seconds for cost in costs if cost.stage == "train")
        assert make_plan(RECIPE, SIZES, many).min_run_hours == pytest.approx(longest_s / 3600)
    costs = [cost for cost in costs if cost.stage == "train" and cost.seconds == longest_s][:1]
    assert min_run_s(costs, many, threads=4) == pytest.approx(longest_s / 4)
    assert min_run_s([replace(costs[0], on_gpu=True)], many, threads=4) == longest_s
    assert min_run_s(costs, Machine(None, 1, 2), threads=4) == pytest.approx(longest_s / 2)


def test_a_model_whose_cost_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match=r"what config_columns_boosting costs is not known"):
        stage_costs(
            load_recipe("within_graph", ["layout.models=[config_columns_boosting]"]), SIZES, SLOW
        )


def test_a_step_by_segments_does_not_grow_with_the_graph_but_ranking_does() -> None:
    keys = ["segment_sage.hidden=8", "segment_sage.segment_nodes=500"]

    def seconds(nodes: int, head_steps: int, n: int = 1) -> tuple[float, float]:
        own = [f"segment_sage.head_steps={head_steps}", f"segment_sage.graphs_per_step={n}"]
        recipe = load_recipe("segments", [*keys, *own])
        train = part(LAYOUT, "train", 10, nodes=nodes)
        of_rank = ranking_s(recipe, "segment_sage", train, SLOW)
        return training_s(recipe, "segment_sage", train, SLOW), of_rank

    (small, rank), (large, rank_large) = seconds(2_000, 0), seconds(8_000, 0)
    assert small == large > 0 and rank_large == pytest.approx(4 * rank)
    assert seconds(250, 0)[0] == pytest.approx(small / 2)
    # All of a graph's 100 configs are learned from: its head sees each of ten graphs once.
    assert seconds(2_000, 3)[0] - small == pytest.approx(3 * rank)
    assert seconds(2_000, 50)[0] - small == pytest.approx(10 * rank)
    several, _ = seconds(2_000, 0, n=2)
    assert seconds(2_000, 3, n=2)[0] - several == pytest.approx(6 * rank)


def test_what_does_not_fit_the_card_is_named_with_what_to_halve() -> None:
    peaks = [peak_mib(RECIPE, [part], SLOW) for part in SIZES]
    found = {(one.stage, one.model): one for one in make_plan(RECIPE, SIZES, SLOW).card_memory}
    assert set(found) == {
        (stage, model)
        for stage in ("train", "rank")
        for model in (MODEL, "baseline_gcn", "late_fusion_sage")
    }
    assert all(one.fits and not one.halve and one.card_gib == 16 for one in found.values())
    need = (CONTEXT_MIB + CACHE_MIB + COUNTS.peak_bytes * WORK / 2**20) / 1024
    assert found["train", MODEL].peak_gib == pytest.approx(need)
    assert SLOW.card is not None
    small = Machine(replace(SLOW.card, memory_gib=need - 0.01))
    [one] = [one for one in card_memory(RECIPE, peaks, small) if one.model == MODEL][:1]
    assert not one.fits
    assert one.halve == [f"{MODEL}.configs_per_step (now 64)", f"{MODEL}.hidden (now 8)"]
    assert card_memory(RECIPE, peaks, Machine(None)) == []


def test_a_larger_graph_is_ranked_in_more_memory() -> None:
    recipe = load_recipe("cpu", [f"layout.models=[{MODEL}]", f"{MODEL}.hidden=8"])
    sizes = [part(LAYOUT, "test", 1, nodes=nodes, configs=1000) for nodes in (2_000, 10_000)]
    few, many = (peak_mib(recipe, [one], SLOW)[f"rank {MODEL}"] for one in sizes)
    assert many > few + 8 * 4 * 8_000 * 0.07 * 1000 / 2**20  # all configs of configurable nodes


def test_a_card_is_known_by_its_name_to_torch_and_pruning_by_what_was_counted() -> None:
    assert card_named("Tesla T4") == CARDS["t4"]
    assert card_named("NVIDIA A100-SXM4-80GB") == CARDS["a100"]
    assert card_named("NVIDIA GeForce RTX 3090") is None
    assert {*RULES} - {"none"} <= KEPT_PER_CONFIGURABLE.keys()  # of others `plan` takes all nodes
    kept = [kept_nodes(rule, 43_615) for rule in ("hops-1", "hops-2", "hops-9")]
    assert kept == pytest.approx([3.6 * 3_143, 7 * 3_143, 43_615])


def test_a_step_on_this_processor_scales_networks_alone() -> None:
    recipe = load_recipe("cpu", [f"{MODEL}.hidden=8", "accelerator=cpu"])
    found = calibrated(SLOW, recipe)
    assert found == replace(SLOW, cpu_scale=found.cpu_scale, measured=found.measured)
    told = f"a training step of {MODEL} took {found.cpu_scale:.2f} times as long as computed"
    assert found.measured == f"{told} on this machine's processor, one thread"
    found = replace(SLOW, cpu_scale=3.0)
    costs = stage_costs(recipe, SIZES, SLOW), stage_costs(recipe, SIZES, found)
    for plain, scaled in zip(*costs, strict=True):
        factor = 3 if plain.model in (MODEL, "late_fusion_sage") else 1
        assert scaled.seconds == pytest.approx(plain.seconds * factor)
    with pytest.raises(UsageError, match="no layout network to time"):
        calibrated(SLOW, load_recipe("cpu", ["layout.models=[layout_linear]"]))
