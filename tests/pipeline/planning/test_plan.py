"""The cost of a recipe by model and collection, from simple costs of training steps."""

from dataclasses import replace

import numpy as np
import pytest

from common.settings import apply_overrides
from data.cache import CACHE_BYTES
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS
from pipeline.planning import plan as planning
from pipeline.planning.costs import CARDS, Card, Sizes, Step, StepCosts, StepTimes, find_step_costs
from pipeline.planning.plan import Graphs, ModelPlan, Plan, make_plan, official_graphs

LAYOUT, TILE, MODEL = "layout:xla:random", "tile:xla", "cross_config_sage"


@pytest.fixture(autouse=True)
def _graphs_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"read": (0.0,) * 4, "read statistics": (0.0,) * 4}
    table = {kind: {**stages, **free} for kind, stages in planning.PROCESSOR_S.items()}
    monkeypatch.setattr(planning, "PROCESSOR_S", table)


class SimpleSteps(StepCosts):
    """A step takes a microsecond for each thousand values, and two bytes for each value."""

    def step_ms(self, recipe: Recipe, model: str, step: Step) -> tuple[Sizes, Sizes]:
        return step.values * 1e-6, 0 * step.values

    def peak_bytes(self, recipe: Recipe, model: str, step: Step) -> float:
        return float(step.values.max()) * 2


def part(collection: str, split: str, n: int, *, nodes: int = 1000, configs: int = 100) -> Graphs:
    return Graphs(collection, split, np.full(n, nodes), np.full(n, configs))


SIZES = [
    part(LAYOUT, "train", 10),
    part(LAYOUT, "valid", 2),
    part(LAYOUT, "test", 3),
    part(TILE, "train", 20, nodes=40),
    part(TILE, "test", 5, nodes=40),
]
SETS = [
    "seeds=[0,1,2]",
    "features.prune=none",
    "layout.together=false",
    "layout.models=[cross_config_sage, layout_boosting]",
    "tile.models=[late_fusion_sage, tile_linear]",
    "cross_config_sage.hidden=8",
    "cross_config_sage.configs_per_step=64",
    "cross_config_sage.training.steps=36",
    "cross_config_sage.statistics=false",
    "layout_boosting.num_boost_round=40",
]
RECIPE = load_recipe("cpu", SETS)


def plan_of(
    recipe: Recipe = RECIPE,
    card: Card | None = CARDS["t4"],
    sizes: list[Graphs] = SIZES,
    **counts: int,
) -> Plan:
    return make_plan(recipe, SimpleSteps(card, StepTimes(card="", steps=())), sizes, **counts)


def of_layouts(stage: str, nodes: int, configs: int) -> float:
    """Return the seconds of one layout graph."""
    factors = planning.PROCESSOR_S["layout"][stage]
    return sum(f * n for f, n in zip(factors, (1, nodes, configs, nodes * configs), strict=True))


def row_of(plan: Plan, model: str = MODEL, collection: str = "") -> ModelPlan:
    return next(m for m in plan.models if m.model == model and m.collection.startswith(collection))


def test_networks_take_their_steps_and_trees_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    network = row_of(plan_of())
    assert (network.runs, network.steps, network.on_gpu) == (3, 36, True)
    assert network.step_ms == pytest.approx(1000 * 64 * 8 * 1e-6)
    assert network.train_hours == pytest.approx(36 * 1000 * 64 * 8 * 1e-9 / 3600)
    # Five graphs of 100 configs, by three seeds, without a backward pass.
    values = 3 * 5 * 1000 * 100 * 8
    assert network.rank_hours == pytest.approx(planning.RANKING_SHARE * values * 1e-9 / 3600)
    trees = row_of(plan_of(), "layout_boosting")
    expected = 10 * of_layouts("statistics", 1000, 100)
    expected += 40 * planning.ROW_ROUND_S["layout_boosting"] * 10 * 100
    assert trees.train_hours == pytest.approx(expected / 3600) and not trees.on_gpu
    assert trees.rank_hours == pytest.approx(3 * 5 * of_layouts("rank", 1000, 100) / 3600)
    # A processor that reads slowly holds up the card.
    monkeypatch.setitem(planning.PROCESSOR_S["layout"], "read", (1e3, 0.0, 0.0, 0.0))
    slow = row_of(plan_of())
    assert slow.train_hours == pytest.approx(slow.steps * slow.host_ms / 1e3 / 3600)
    assert slow.host_ms > 1e3


def test_more_inputs_than_the_cache_takes_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chance of a hit is that of a cache of recent graphs, played through."""
    monkeypatch.setitem(planning.PROCESSOR_S["layout"], "read", (0.0, 0.0, 1e-7, 0.0))
    rng, n_graphs, n_rounds = np.random.default_rng(0), 60, 40
    bytes_of_config = planning.INPUT_CONFIG_BYTES
    for share in (0.3, 0.7):
        n_configs = CACHE_BYTES / share / n_graphs / bytes_of_config
        graphs = part(LAYOUT, "train", n_graphs, nodes=0, configs=round(n_configs))
        recipe = load_recipe("cpu", [*SETS, f"{MODEL}.training.steps={n_graphs * n_rounds}"])
        seconds, _ = planning._reading(recipe, MODEL, graphs)
        recent: list[int] = []
        n_reads = 0
        for _ in range(n_rounds):
            for graph in rng.permutation(n_graphs).tolist():
                n_reads += graph not in recent
                recent = [other for other in recent if other != graph] + [graph]
                recent = recent[-round(share * n_graphs) :]
        read_s = of_layouts("read", 0, round(n_configs))
        assert seconds == pytest.approx(read_s * n_reads / n_graphs / n_rounds, rel=0.06)


def test_totals_are_sums_over_runs_and_lines_of_disk() -> None:
    plan = plan_of()
    networks = [row for row in plan.models if row.on_gpu]
    assert plan.gpu_hours == pytest.approx(
        sum(3 * row.train_hours + row.rank_hours for row in networks)
    )
    layout = plan.collections[0]
    assert layout.collection == LAYOUT
    assert layout.prepare_hours == pytest.approx(15 * of_layouts("prepare", 1000, 100) / 3600)
    assert layout.disk_bytes["raw"] == pytest.approx(15 * 0.11 * 1000 * 100)
    # Six members, the blend and the baseline. Five graphs of 100 configs are ranked.
    files = sum(row.files_bytes for row in plan.models if row.collection == LAYOUT)
    assert layout.disk_bytes["run"] == pytest.approx(8 * 500 * 46 + files) and files > 0
    on_cpu = plan_of(card=None)
    assert on_cpu.gpu_hours == 0 and on_cpu.cpu_hours > plan.cpu_hours
    assert set(plan.disk_bytes) == {"raw", "store", "run"}


def test_a_run_takes_at_least_its_longest_training_or_an_even_share_of_all_work() -> None:
    for threads, card in ((1, CARDS["t4"]), (1, None), (4, None)):
        recipe = RECIPE.model_copy(update={"threads": threads})
        plan = plan_of(recipe, card, n_cards=2, n_cores=3)
        assert plan.min_run_hours >= max(plan.gpu_hours / 2, plan.cpu_hours / 3)
        many = plan_of(recipe, card, n_cards=1000, n_cores=2000)
        longest = max(m.train_hours / (1 if m.on_gpu else threads) for m in many.models)
        assert many.min_run_hours == pytest.approx(longest)


def test_the_memory_of_a_step_by_segments_does_not_grow_with_the_graph() -> None:
    def row(nodes: int, live_segments: int, segment_nodes: int = 500) -> ModelPlan:
        keys = {"segment_nodes": segment_nodes, "live_segments": live_segments}
        sets = [f"segment_sage.{key}={value}" for key, value in keys.items()]
        recipe = load_recipe("segments", [*sets, "seeds=[0]", "features.prune=none"])
        sizes = [part(LAYOUT, split, 10, nodes=nodes) for split in ("train", "test")]
        return row_of(plan_of(recipe, sizes=sizes), "segment_sage")

    def activations_mib(nodes: int, live_segments: int, segment_nodes: int = 500) -> float:
        # All plans of the graph share the memory of its inputs and of libraries.
        whole, cut = (row(nodes, live_segments, n).process_mib for n in (nodes, segment_nodes))
        return whole - cut

    small, large = row(2_000, 0), row(8_000, 0)
    assert large.step_ms == pytest.approx(4 * small.step_ms)
    assert large.rank_hours == pytest.approx(4 * small.rank_hours)
    # The forward pass of several segments is computed twice.
    assert small.step_ms == pytest.approx(4 / 3 * row(2_000, 0, 2_000).step_ms)
    # A whole graph of n nodes needs n - 500 nodes more than a segment of 500.
    assert activations_mib(8_000, 0) == pytest.approx(5 * activations_mib(2_000, 0))
    # Two of four segments, then two of sixteen.
    stored, larger = row(2_000, 2), row(8_000, 2)
    assert stored.step_ms == larger.step_ms == pytest.approx(3 / 8 * small.step_ms)


def test_one_model_of_all_layouts_is_trained_once() -> None:
    """Its training is that of all graphs: the linear ranker's time is the sum."""
    sizes = [part for part in official_graphs() if part.kind == "layout"]
    sets = ["seeds=[0]", f"layout.models=[{MODEL}, layout_linear]"]
    recipes = [load_recipe("smoke", [*sets, f"layout.together={key}"]) for key in ("true", "false")]
    together, apart = (
        [row for row in plan_of(recipe, sizes=sizes).models if row.model == "layout_linear"]
        for recipe in recipes
    )
    assert [row.runs for row in together] == [1, 0, 0, 0]
    total = sum(row.train_hours for row in apart)
    assert together[0].train_hours == pytest.approx(total, rel=1e-3)
    assert sum(row.train_hours for row in together[1:]) == 0


def test_a_collection_costs_what_its_own_keys_take_and_a_final_fit_as_much_again() -> None:
    table = RECIPE.model_dump(mode="json")
    keys = [f'collection."{LAYOUT}".{MODEL}.training.steps=72']
    twice = Recipe.from_table(apply_overrides(table, keys), source="test")
    assert row_of(plan_of(twice)).train_hours == pytest.approx(2 * row_of(plan_of()).train_hours)
    assert row_of(plan_of(twice), "tile_linear") == row_of(plan_of(), "tile_linear")
    final = Recipe.from_table(apply_overrides(table, ["fit_on=[train, valid]"]), source="test")
    assert row_of(plan_of(final)).runs == 6
    assert row_of(plan_of(final)).rank_hours == pytest.approx(row_of(plan_of()).rank_hours)


def test_seeds_and_splits_of_a_model_count_for_this_model_only() -> None:
    table = RECIPE.model_dump(mode="json")
    keys = [f"{MODEL}.seeds=[4,5]", "layout_boosting.fit_on=[train, valid]"]
    plan = plan_of(Recipe.from_table(apply_overrides(table, keys), source="test"))
    assert [row_of(plan, name).runs for name in (MODEL, "layout_boosting", "tile_linear")] == [
        2,
        6,
        3,
    ]
    before, trees = (row_of(p, "layout_boosting") for p in (plan_of(), plan))
    # The second fit has twelve graphs, the first ten.
    assert trees.train_hours == pytest.approx(1.1 * before.train_hours)
    assert trees.rank_hours == pytest.approx(before.rank_hours)
    assert row_of(plan).rank_hours == pytest.approx(row_of(plan_of()).rank_hours * 2 / 3)


def test_every_network_and_statistics_ranker_has_a_cost() -> None:
    for kind in ("layout", "tile"):
        models = [name for name in MODELS if MODELS[name].kind == kind]
        recipe = load_recipe("smoke", [f"{kind}.models=[{', '.join(models)}]"])
        trained = {row.model for row in plan_of(recipe).models if row.runs}
        assert trained >= {*models}


def test_memory_of_the_process_grows_with_the_largest_graph() -> None:
    """A network of width 32 needs 3 GiB at 41,541 nodes."""
    recipe = load_recipe("leaderboard", [f"{MODEL}.hidden=32", f"{MODEL}.dropout=0"])
    costs = replace(find_step_costs("none", None))
    small, large = (
        planning.model_plan(costs, recipe, MODEL, [part(LAYOUT, "train", 1, nodes=nodes)])
        for nodes in (4_000, 41_541)
    )
    assert small.process_mib < 1024 < 2 * 1024 < large.process_mib < 5 * 1024
