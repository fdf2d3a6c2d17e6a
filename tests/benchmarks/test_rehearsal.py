"""The rehearsal of the leaderboard recipe: a run beside its plan, and kernels."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.rehearsal import STEPS, compare_costs, few_steps, rehearsed_graphs, sizes_of
from common.settings import ROOT
from data.tree import COLLECTIONS
from models.config.recipe import load_recipe
from pipeline.planning.costs import find_step_costs
from pipeline.planning.plan import make_plan

LAYOUTS = [one.name for one in COLLECTIONS if one.kind == "layout"]


def test_each_layout_collection_has_its_largest_graph_and_its_most_configs() -> None:
    graphs = rehearsed_graphs(10**6, 10**6, 200)
    for name in LAYOUTS:
        of = [graph for graph in graphs if graph.collection.name == name]
        assert [graph.split for graph in of] == ["train", "train", "valid", "test"]
    sizes = [graph.size for graph in graphs if graph.collection.kind == "layout"]
    assert max(size.n_nodes for size in sizes) == 43_615
    assert max(size.n_configs for size in sizes) >= 99_000
    assert len(graphs) - len(sizes) == pytest.approx(200, abs=2)


def test_every_network_trains_a_few_steps_with_its_keys() -> None:
    whole = load_recipe("leaderboard")
    few = load_recipe("leaderboard", [*few_steps(whole)])
    for one in COLLECTIONS:
        for model in whole.models_of(one.kind):
            if training := few.of(one).training_of(model):
                assert training.steps == STEPS[one.kind]
                config, original = (getattr(r.of(one), model) for r in (few, whole))
                assert config.seeds == whole.seeds[:1]
                kept = {"training": original.training, "seeds": original.seeds}
                assert config.model_copy(update=kept) == original


def test_a_run_that_takes_half_of_its_plan_has_the_ratio_of_one_half() -> None:
    recipe = load_recipe("leaderboard", [*few_steps(load_recipe("leaderboard"))])
    small = make_plan(recipe, find_step_costs("none", None), sizes_of(rehearsed_graphs(500, 50, 9)))
    names = {f"train {row.collection} {row.model}-seed0": row for row in small.models}
    spent = {name: row.train_hours * 1800 for name, row in names.items()}
    spent |= {f"{name} on train and valid": spent[name] for name in names if names[name].runs == 2}
    assert len(names) < len(spent) < 2 * len(names)
    costs = {"cpu_seconds": spent, "peak_mib": dict.fromkeys(spent, 100)}
    rows = [row for row in compare_costs(costs, small, small, 0) if row.stage.startswith("train ")]
    assert len(rows) > 10
    for row in rows:
        assert row.ratio == pytest.approx(0.5) and row.peak_mib == 100


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_small_files_go_through_all_stages(tmp_path: Path) -> None:
    options = ["--max-nodes 900", "--max-configs 60", "--kernels 12", f"--report {tmp_path}"]
    recipe = load_recipe("leaderboard")
    small = [f"{model}.hidden=8" for model in recipe.all_models if recipe.training_of(model)]
    words = ["make", "--old-file=setup", "rehearsal", f"REHEARSAL={tmp_path}"]
    words.append(f"OPTIONS={' '.join(options)}")
    words.append(f"OVERRIDES={' '.join([*small, 'layout_boosting.num_boost_round=5'])}")
    for _ in range(2):  # the second call finds all stages finished
        subprocess.run(words, cwd=ROOT, check=True)
    text = (tmp_path / "rehearsal.md").read_text()
    for name in LAYOUTS:
        assert f"| rank {name} |" in text and f"| train {name} cross_config_sage |" in text
    assert json.loads((tmp_path / "sessions/infer/1/kernel.json").read_text())["kind"] == "infer"
