"""The cost of a recipe by stage and collection, from known costs of training steps."""

from dataclasses import replace

import pytest

from common.errors import UsageError
from data.official.published import PartSize, official_sizes
from features.statistics.configs import ALL_STATISTICS
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS
from pipeline.planning.cards import CARDS, Card
from pipeline.planning.plan import (
    CONTEXT_MIB,
    StageCost,
    make_plan,
    min_run_s,
    stage_costs,
)
from pipeline.planning.step_costs import StepCosts, StepSize

LAYOUT, TILE = "layout:xla:random", "tile:xla"
MODEL = "cross_config_sage"


class KnownSteps(StepCosts):
    """A step takes a microsecond for each thousand values, and two bytes for each value."""

    def _host_and_kernels_s(self, model: str, size: StepSize) -> tuple[float, float]:
        return 0.0, size.values * 1e-9

    def peak_bytes(self, model: str, size: StepSize) -> float:
        return size.values * 2


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
        "features.prune=none",
        "layout.models=[cross_config_sage, layout_boosting]",
        "tile.models=[late_fusion_sage, tile_linear]",
        "cross_config_sage.hidden=8",
        "cross_config_sage.configs_per_step=64",
        "cross_config_sage.training.steps=36",
        "layout_boosting.num_boost_round=40",
    ],
)


def hours(recipe: Recipe = RECIPE, card: Card | None = CARDS["t4"]) -> dict[tuple[str, str], float]:
    """Return the hours of one seed, by stage and model."""
    costs = stage_costs(recipe, SIZES, KnownSteps(recipe, card))
    return {(cost.stage, cost.model): cost.seconds / 3600 for cost in costs if cost.model}


def test_networks_take_their_steps_and_trees_their_rows() -> None:
    found = hours()
    assert found["train", MODEL] == pytest.approx(36 * 1000 * 64 * 8 * 1e-9 / 3600)
    # Five graphs of 100 configs, without a backward pass.
    assert found["rank", MODEL] == pytest.approx(5 * 1000 * 100 * 8 * 1e-9 / 3 / 3600)
    assert found["train", "tile_linear"] == pytest.approx(20 * 0.035 / 3600)
    trees = 10 * 1000 * 100 * 3.2e-8 + 40 * 1.6e-6 * 10 * 100
    assert found["train", "layout_boosting"] == pytest.approx(trees / 3600)
    assert found["rank", "layout_boosting"] == pytest.approx(5 * 1e5 * 8e-9 / 3600)


def test_a_plan_adds_up_seeds_time_memory_and_disk() -> None:
    plan, found = make_plan(KnownSteps(RECIPE, CARDS["t4"]), SIZES), hours()
    layout = plan.collections[0]
    assert layout.collection == LAYOUT
    for stage in ("train", "rank"):
        assert layout.gpu_hours[stage] == pytest.approx(3 * found[stage, MODEL])
    assert layout.cpu_hours["train"] == pytest.approx(3 * found["train", "layout_boosting"])
    assert layout.cpu_hours["prepare"] == pytest.approx(15 * 1e5 * 2.5e-9 / 3600)
    n_bytes = 10 * 1e2 * 3 * len(ALL_STATISTICS["layout"])
    assert layout.peak_mib["layout_boosting"] == pytest.approx(n_bytes / 2**20)
    network_mib = CONTEXT_MIB + 2048 + 1000 * 64 * 8 * 2 / 2**20
    assert layout.peak_mib[MODEL] == pytest.approx(network_mib)
    assert plan.card_gib[MODEL] == pytest.approx(network_mib / 1024)
    assert layout.disk_bytes["raw"] == pytest.approx(15 * 0.11 * 1000 * 100)
    # Six members, the blend and the baseline. Five graphs of 100 configs are ranked.
    assert layout.disk_bytes["run"] == pytest.approx(8 * 500 * 46)
    on_cpu = make_plan(KnownSteps(RECIPE), SIZES)
    assert on_cpu.total("gpu_hours") == 0 and not on_cpu.card_gib
    assert on_cpu.total("cpu_hours") > plan.total("cpu_hours")


def test_a_run_takes_at_least_its_longest_training_or_an_even_share_of_all_work() -> None:
    assert RECIPE.threads == 1
    for card in (CARDS["t4"], None):
        steps = KnownSteps(RECIPE, card)
        plan = make_plan(steps, SIZES, n_cards=2, n_cores=3)
        shares = plan.total("gpu_hours") / 2, plan.total("cpu_hours") / 3
        assert plan.min_run_hours == pytest.approx(max(shares))
        trainings = (cost for cost in stage_costs(RECIPE, SIZES, steps) if cost.stage == "train")
        longest_s = max(cost.seconds for cost in trainings)
        many = make_plan(steps, SIZES, n_cards=1000, n_cores=2000)
        assert many.min_run_hours == pytest.approx(longest_s / 3600)
    training = StageCost(LAYOUT, "train", MODEL, 8.0, on_gpu=False)
    assert min_run_s([training], 1, 100, threads=4) == 2
    assert min_run_s([training], 1, 2, threads=4) == 4
    assert min_run_s([replace(training, on_gpu=True)], 1, 100, threads=4) == 8


def test_a_model_whose_cost_is_not_known_is_refused() -> None:
    recipe = load_recipe("within_graph", ["layout.models=[config_columns_boosting]"])
    with pytest.raises(UsageError, match=r"the cost of config_columns_boosting is not known"):
        stage_costs(recipe, SIZES, KnownSteps(recipe))


def test_a_step_by_segments_does_not_grow_with_the_graph_but_ranking_does() -> None:
    def seconds(nodes: int, head_steps: int) -> dict[str, float]:
        sets = ["segment_sage.segment_nodes=500", f"segment_sage.head_steps={head_steps}"]
        recipe = load_recipe("segments", [*sets, "seeds=[0]", "features.prune=none"])
        sizes = [part(LAYOUT, split, 10, nodes=nodes) for split in ("train", "test")]
        costs = stage_costs(recipe, sizes, KnownSteps(recipe))
        return {cost.stage: cost.seconds for cost in costs}

    small, large = seconds(2_000, 0), seconds(8_000, 0)
    assert small["train"] == large["train"] > 0
    assert large["rank"] == pytest.approx(4 * small["rank"])
    # All of a graph's 100 configs are learned from. The head sees each of ten graphs once.
    for head_steps, n_graphs in ((3, 3), (50, 10)):
        more_s = seconds(2_000, head_steps)["train"] - small["train"]
        assert more_s == pytest.approx(n_graphs / 10 * small["rank"])


def test_one_model_of_all_layouts_is_trained_once() -> None:
    """Its training is that of all graphs: the linear ranker's time is the sum."""
    sizes = [part for part in official_sizes() if part.kind == "layout"]
    sets = ["seeds=[0]", f"layout.models=[{MODEL}, layout_linear]"]
    recipes = [load_recipe("smoke", [*sets, f"layout.together={key}"]) for key in ("true", "false")]
    together, apart = (
        [cost for cost in stage_costs(recipe, sizes, KnownSteps(recipe)) if cost.stage == "train"]
        for recipe in recipes
    )
    first = sizes[0].collection
    assert [(cost.collection, cost.model) for cost in together] == [
        (first, MODEL),
        (first, "layout_linear"),
    ]
    each = [cost.seconds for cost in apart if cost.model == "layout_linear"]
    assert len(each) == 4 and together[1].seconds == pytest.approx(sum(each), rel=1e-3)


def test_every_network_and_statistics_ranker_has_a_cost() -> None:
    known = [name for name in MODELS if name != "config_columns_boosting"]
    for kind in ("layout", "tile"):
        models = [name for name in known if MODELS[name].kind == kind]
        recipe = load_recipe("smoke", [f"{kind}.models=[{', '.join(models)}]"])
        costs = stage_costs(recipe, SIZES, KnownSteps(recipe))
        assert {cost.model for cost in costs if cost.stage == "train"} >= {*models}
