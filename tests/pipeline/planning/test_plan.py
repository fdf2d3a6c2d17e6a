"""Costs of a recipe, computed by hand from laws of round numbers; what is dropped to fit."""

import pytest

from common.errors import PipelineError, UsageError
from models.config.recipe import load_recipe
from pipeline.planning.budget import Budget, reductions
from pipeline.planning.costs import configurable_nodes, kept_nodes, stage_costs
from pipeline.planning.memory import CACHE_MIB, fit_memory, peak_mib
from pipeline.planning.plan import ALL, fit_plan, gpu_tasks, make_plan
from tests.pipeline.planning.plans import LAYOUT, SIZES, TILE, made_up_laws

LAWS = made_up_laws()
RECIPE = load_recipe(
    "cpu",
    [
        "seeds=[0,1,2]",
        "layout.models=[cross_config_sage, global_attention_sage, layout_boosting]",
        "tile.models=[late_fusion_sage, tile_linear]",
        "cross_config_sage.training.steps=3600",
        "global_attention_sage.training.steps=7200",
        "global_attention_sage.graphs_per_step=2",
        "late_fusion_sage.training.steps=1800",
        "layout_boosting.num_boost_round=40",
    ],
)


def hours(stage: str, model: str, collection: str) -> float:
    """Return what a stage takes, of one seed."""
    [found] = [
        cost.cpu_s / 3600
        for cost in stage_costs(RECIPE, SIZES, LAWS)
        if (cost.stage, cost.model, cost.collection) == (stage, model, collection)
        and cost.seed in (None, 0)
    ]
    return found


def test_hours_by_hand() -> None:
    assert hours("prepare", "", LAYOUT) == pytest.approx(15 * 2 / 3600)
    assert hours("train", "cross_config_sage", LAYOUT) == pytest.approx(1)
    assert hours("train", "global_attention_sage", LAYOUT) == pytest.approx(4)  # two graphs a step
    assert hours("train", "layout_boosting", LAYOUT) == pytest.approx((10 * 5 + 40 * 0.25) / 3600)
    assert hours("rank", "cross_config_sage", LAYOUT) == pytest.approx(5 * 36 / 3600)
    assert hours("score", "", LAYOUT) == pytest.approx(5 * 4 / 3600)
    assert hours("train", "late_fusion_sage", TILE) == pytest.approx(0.5)
    assert hours("train", "tile_linear", TILE) == pytest.approx(20 * 6 / 3600)


def test_a_plan_adds_seeds_up_and_divides_what_a_gpu_does() -> None:
    plan = make_plan(RECIPE, SIZES, LAWS, gpu_speedup=10)
    layout = plan.collections[0]
    assert layout.collection == LAYOUT
    assert layout.gpu_hours["train"] == pytest.approx(3 * (1 + 4) / 10)
    assert layout.cpu_hours["train"] == pytest.approx(3 * 60 / 3600)
    assert layout.gpu_hours["rank"] == pytest.approx(3 * 2 * 5 * 36 / 3600 / 10)
    assert layout.disk_bytes["raw"] == pytest.approx(15 * 2**20)
    # Nine members, the blend and the floor; five graphs of 100 configs are ranked.
    assert layout.disk_bytes["run"] == pytest.approx(11 * 500 * 0.001 * 2**20)
    alone = make_plan(RECIPE, SIZES, LAWS, gpu_speedup=0)
    assert alone.total("gpu_hours") == 0
    with_gpu = plan.total("gpu_hours") * 10 + plan.total("cpu_hours")
    assert alone.total("cpu_hours") == pytest.approx(with_gpu)


def test_a_model_that_was_not_measured_is_refused() -> None:
    with pytest.raises(UsageError, match=r"what segment_sage costs was not measured; expected"):
        stage_costs(load_recipe("cpu", ["layout.models=[segment_sage]"]), SIZES, LAWS)


def test_pruning_keeps_what_was_counted_and_never_more_than_all() -> None:
    assert configurable_nodes(43_615) == pytest.approx(3_143)
    assert kept_nodes("hops-1", 1000, 10) == 36
    assert kept_nodes("hops-1", 1000, 900) == 1000
    assert kept_nodes("hops-9", 1000, 10) == 1000


def test_the_order_of_what_is_dropped() -> None:
    dropped = [text for text, _ in reductions(RECIPE)]
    assert dropped == ["seed 2", "global_attention_sage", "seed 1"]
    *_, (_, last) = reductions(RECIPE)
    assert last.seeds == (0,)
    assert last.layout.models == ("cross_config_sage", "layout_boosting")
    assert last.tile.models == ("late_fusion_sage", "tile_linear")


def test_a_budget_for_all_drops_nothing_and_trains_everything_once() -> None:
    tasks, start_hours = gpu_tasks(RECIPE, SIZES, LAWS, gpu_speedup=1)
    fitted = fit_plan(RECIPE, SIZES, LAWS, Budget(30, 12, 1), gpu_speedup=1)
    assert fitted.dropped == []
    assert fitted.recipe == RECIPE
    done = [name for session in fitted.sessions for name, _ in session.parts]
    assert sorted(set(done)) == sorted({task.name for task in tasks})
    assert start_hours == pytest.approx({LAYOUT: 20 / 3600, TILE: 40 / 3600, ALL: 20 / 3600})
    assert sum(s.hours for s in fitted.sessions if s.collection == LAYOUT) == pytest.approx(
        15 + 20 / 3600 * sum(s.collection == LAYOUT for s in fitted.sessions)
    )


def test_ranking_goes_on_in_another_session_where_one_does_not_hold_it() -> None:
    recipe = RECIPE.model_copy(update={"seeds": (0,)})
    tasks, start_hours = gpu_tasks(recipe, SIZES, LAWS, gpu_speedup=1)
    ranking = tasks[-1].hours
    # By hand: two networks and trees rank 5 layout graphs, a network and a linear one 5 kernels.
    by_hand = 5 * (36 + 36 + 3) + 5 * (36 + 0.5) + 10 * 4
    assert (tasks[-1].collection, ranking) == (ALL, pytest.approx(by_hand / 3600))
    budget = Budget(30, ranking * 0.6 + start_hours[ALL], 1)
    sessions = fit_plan(recipe, SIZES, LAWS, budget, gpu_speedup=1).sessions
    ranked = [session for session in sessions if session.collection == ALL]
    assert [session.hours for session in ranked] == pytest.approx(
        [ranking * 0.6 + start_hours[ALL], ranking * 0.4 + start_hours[ALL]]
    )
    assert sessions[-2:] == ranked


def test_a_smaller_budget_drops_a_seed_first_then_a_network() -> None:
    budgets = {14: ["seed 2"], 5: ["seed 2", "global_attention_sage"]}
    for gpu_hours, dropped in budgets.items():
        fitted = fit_plan(RECIPE, SIZES, LAWS, Budget(gpu_hours, 12, 1), gpu_speedup=1)
        assert fitted.dropped == dropped
        assert sum(session.hours for session in fitted.sessions) <= gpu_hours


def test_memory_by_hand_and_halved_until_it_fits() -> None:
    kept = 3.6 * 1000 * 3143 / 43615
    need = 300 + CACHE_MIB + 0.01 * kept * 64
    assert peak_mib(RECIPE, SIZES, LAWS)["train cross_config_sage"] == pytest.approx(need)
    smaller = load_recipe(
        "cpu", ["cross_config_sage.configs_per_step=64", "tile.models=[tile_linear]"]
    )
    recipe, settings = fit_memory(
        smaller, SIZES, LAWS, limit_mib=300 + CACHE_MIB + 0.01 * kept * 33
    )
    assert settings == ["cross_config_sage.configs_per_step=32"]
    assert recipe.cross_config_sage.configs_per_step == 32
    assert fit_memory(smaller, SIZES, LAWS, limit_mib=need + 1) == (smaller, [])


def test_what_cannot_be_halved_any_more_does_not_fit() -> None:
    with pytest.raises(PipelineError, match=r"memory of 2.0 GiB: 'train \w+' takes .* GiB"):
        fit_memory(RECIPE, SIZES, LAWS, limit_mib=2048)
