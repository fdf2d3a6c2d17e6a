"""The cost of a recipe by stage and collection, from known costs of training steps."""

import pytest

from common.settings import apply_overrides
from data.official.published import PartSize, official_sizes
from features.statistics.configs import ALL_STATISTICS
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS
from pipeline.planning.plan import CONTEXT_MIB, Plan, make_plan, total
from pipeline.planning.step_costs import CARDS, Card, StepCosts, StepSize

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


def plan_of(recipe: Recipe = RECIPE, card: Card | None = CARDS["t4"], **counts: int) -> Plan:
    return make_plan(KnownSteps(recipe, card), SIZES, **counts)


def hours(model: str, stage: str) -> float:
    """Return the hours of one seed of a model."""
    kind = MODELS[model].kind
    recipe = RECIPE.model_copy(update={"seeds": (0,)})
    one = recipe.model_copy(
        update={kind: getattr(recipe, kind).model_copy(update={"models": (model,)})}
    )
    rows = [row for row in plan_of(one).collections if row.collection.startswith(kind)]
    return sum(row.gpu_hours[stage] + row.cpu_hours[stage] for row in rows)


def test_networks_take_their_steps_and_trees_their_rows() -> None:
    assert hours(MODEL, "train") == pytest.approx(36 * 1000 * 64 * 8 * 1e-9 / 3600)
    # Five graphs of 100 configs, without a backward pass.
    assert hours(MODEL, "rank") == pytest.approx(5 * 1000 * 100 * 8 * 1e-9 / 3 / 3600)
    assert hours("tile_linear", "train") == pytest.approx(20 * 0.035 / 3600)
    trees = 10 * 1000 * 100 * 3.2e-8 + 40 * 1.6e-6 * 10 * 100
    assert hours("layout_boosting", "train") == pytest.approx(trees / 3600)
    assert hours("layout_boosting", "rank") == pytest.approx(5 * 1e5 * 8e-9 / 3600)


def test_a_plan_adds_up_seeds_time_memory_and_disk() -> None:
    plan = plan_of()
    layout = plan.collections[0]
    assert layout.collection == LAYOUT
    for stage in ("train", "rank"):
        assert layout.gpu_hours[stage] == pytest.approx(3 * hours(MODEL, stage))
    assert layout.cpu_hours["train"] == pytest.approx(3 * hours("layout_boosting", "train"))
    assert layout.cpu_hours["prepare"] == pytest.approx(15 * 1e5 * 2.5e-9 / 3600)
    n_bytes = 10 * 1e2 * 3 * len(ALL_STATISTICS["layout"])
    assert layout.peak_mib["layout_boosting"] == pytest.approx(n_bytes / 2**20)
    network_mib = CONTEXT_MIB + 2048 + 1000 * 64 * 8 * 2 / 2**20
    assert layout.peak_mib[MODEL] == pytest.approx(network_mib)
    assert plan.card_gib[MODEL] == pytest.approx(network_mib / 1024)
    assert layout.disk_bytes["raw"] == pytest.approx(15 * 0.11 * 1000 * 100)
    # Six members, the blend and the baseline. Five graphs of 100 configs are ranked.
    assert layout.disk_bytes["run"] == pytest.approx(8 * 500 * 46)
    on_cpu = plan_of(card=None)
    assert total(on_cpu.collections, "gpu_hours") == 0 and not on_cpu.card_gib
    assert total(on_cpu.collections, "cpu_hours") > total(plan.collections, "cpu_hours")


def test_a_run_takes_at_least_its_longest_training_or_an_even_share_of_all_work() -> None:
    for threads, card in ((1, CARDS["t4"]), (1, None), (4, None)):
        recipe = RECIPE.model_copy(update={"threads": threads})
        plan = plan_of(recipe, card, n_cards=2, n_cores=3)
        rows = plan.collections
        shares = total(rows, "gpu_hours") / 2, total(rows, "cpu_hours") / 3
        assert plan.min_run_hours >= max(shares)
        many = plan_of(recipe, card, n_cards=1000, n_cores=2000)
        longest = max(h / (1 if card else threads) for r in rows for h in r.training_hours.values())
        assert many.min_run_hours == pytest.approx(longest)


def test_a_step_by_segments_does_not_grow_with_the_graph_but_ranking_does() -> None:
    def seconds(nodes: int, head_steps: int) -> dict[str, float]:
        sets = ["segment_sage.segment_nodes=500", f"segment_sage.head_steps={head_steps}"]
        recipe = load_recipe("segments", [*sets, "seeds=[0]", "features.prune=none"])
        sizes = [part(LAYOUT, split, 10, nodes=nodes) for split in ("train", "test")]
        (row,) = make_plan(KnownSteps(recipe), sizes).collections
        return row.cpu_hours

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
        [row.training_hours for row in make_plan(KnownSteps(recipe), sizes).collections]
        for recipe in recipes
    )
    assert together[0].keys() == {MODEL, "layout_linear"} and not any(together[1:])
    each = [trainings["layout_linear"] for trainings in apart]
    assert len(each) == 4 and together[0]["layout_linear"] == pytest.approx(sum(each), rel=1e-3)


def test_a_collection_costs_what_its_own_keys_take_and_a_final_fit_as_much_again() -> None:
    keys = [f'collection."{LAYOUT}".{MODEL}.training.steps=72']
    table = apply_overrides(RECIPE.model_dump(mode="json"), ["layout.together=false"])
    base = Recipe.from_table(table, source="test")
    one = Recipe.from_table(apply_overrides(table, keys), source="test")
    final = Recipe.from_table(apply_overrides(table, ["fit_on=[train, valid]"]), source="test")
    once = plan_of(base).collections[0].gpu_hours
    assert plan_of(one).collections[0].gpu_hours["train"] == pytest.approx(2 * once["train"])
    assert plan_of(one).collections[1] == plan_of(base).collections[1]
    both = plan_of(final).collections[0].gpu_hours
    assert both["train"] == pytest.approx(2 * once["train"])
    assert both["rank"] == pytest.approx(once["rank"])


def test_every_network_and_statistics_ranker_has_a_cost() -> None:
    for kind in ("layout", "tile"):
        models = [name for name in MODELS if MODELS[name].kind == kind]
        recipe = load_recipe("smoke", [f"{kind}.models=[{', '.join(models)}]"])
        trained = [row.training_hours.keys() for row in plan_of(recipe).collections]
        assert any(own == {*models} for own in trained)
