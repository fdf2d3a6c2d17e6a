"""Search spaces are read, checked and sampled. Trials get values or are pruned."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from scipy.stats import wilcoxon

from common.errors import UsageError
from common.metrics import kendall_tau, tile_score
from common.settings import CONFIGS
from data.families import grouped_folds
from data.graph_store.stored_graph import read_graph
from data.synthetic.write import PLANS, planned_graphs, synthesize
from data.tree import GraphFile, collection_named, find_graphs
from models.config.recipe import Recipe, load_recipe
from models.registry import load_model
from models.run_folder import flat, is_done
from pipeline.tuning.objective import P_THRESHOLD, TuningObjective, pruner_of, report_folds
from pipeline.tuning.space import space_from_table
from tests.pipeline.tuning.conftest import PARAMETERS, outcome, search, small_recipe, space_over

STUDY = """
[study]
collection = "layout:xla:default"
model = "cross_config_sage"
"""
SHIPPED = [path.read_text() for path in sorted((CONFIGS / "tune").glob("*.toml"))]


def space_of(text: str, *, study: str = STUDY, recipe: Recipe | None = None) -> Any:
    return space_from_table(tomllib.loads(study + text), recipe, source="search space mine")


@pytest.mark.parametrize("text", SHIPPED)
def test_each_shipped_space_fits_the_recipe_of_the_command(text: str) -> None:
    cpu = load_recipe("cpu")
    space, values = space_of(text, study="", recipe=cpu), dict(flat(cpu.model_dump(mode="json")))
    outside = [key for key, p in space.parameters.items() if not p.is_allowed(values[key])]
    assert not outside, "the recipe itself is a trial of the space"


def study_of(model: str, collection: str) -> str:
    return f'[study]\ncollection = "{collection}"\nmodel = "{model}"\n'


LAYOUT, TILE, HIDDEN = "layout:nlp:random", "tile:xla", "cross_config_sage.hidden"
PRUNE = '["features.prune"]\nchoices = ["hops-1"]'
ROUNDS = '["tile_boosting.num_boost_round"]\nchoices = [1]'


@pytest.mark.parametrize(
    ("study", "text", "message"),
    [
        (STUDY, '["cross_config_sage.width"]\nlow = 1\nhigh = 2', "unknown key 'cross_config_sage"),
        (STUDY, f'["{HIDDEN}"]\nchoices = [32, -1]', f"'{HIDDEN}' is -1"),
        (STUDY, f'["{HIDDEN}"]\nlow = 8.0\nhigh = 9.0', "expected a whole number"),
        (STUDY, f'["{HIDDEN}"]\nlow = 9\nhigh = 8', "9 to 8: expected low <= high"),
        (STUDY, f'["{HIDDEN}"]\nlow = 8', "expected choices, or low and high"),
        (STUDY, f'["{HIDDEN}"]\nlow = 8\nhigh = 9\nscale = 1', "unknown key .*scale'"),
        (STUDY, f'["{HIDDEN}"]\nlow = 0.0\nhigh = 1.0\nlog = true', "for log above 0"),
        (STUDY, "", "parameters"),
        ("", PRUNE, "collection"),
        (study_of("cross_config_sage", "layout:xla"), PRUNE, "no such collection"),
        (study_of("cross_config_sage", TILE), PRUNE, "late_fusion_sage"),
        (f"{STUDY}folds = 1\n", PRUNE, "'study.folds' is 1"),
        (f"{STUDY}pruner = 'asha'\n", PRUNE, "'study.pruner' is 'asha'"),
        (f"{STUDY}trials = 3\n", PRUNE, "unknown key 'study.trials'"),
        (STUDY, ROUNDS, "'tile_boosting.num_boost_round' has no effect; trials of 'cross_config"),
        (STUDY, f"[{HIDDEN}]\nchoices = [8]", rf'expected: \["{HIDDEN}"\], not \[{HIDDEN}\]'),
        (study_of("tile_linear", TILE), PRUNE, "unnamed ranks tile configs by late_fusion_sage, "),
        (STUDY, '["threads"]\nchoices = [1]', "'threads' has no effect"),
    ],
)
def test_what_makes_no_recipe_or_changes_no_trial_is_refused_by_name(
    study: str, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=f"^(search space mine|collection).*{message}"):
        space_of(text, study=study)


def test_a_custom_model_is_searched_near_the_recipe_that_names_it() -> None:
    recipe = load_recipe("smoke", ["layout.models=[examples.gat:Gat]"])
    [name] = recipe.custom_models
    study = {"collection": "layout:xla:random", "model": name}
    table = {"study": study, f"{name}.hidden": {"choices": [8, 16]}}
    assert space_from_table(table, recipe, source="x").study.model == name
    with pytest.raises(UsageError, match=f"'study.model' is '{name}': recipe unnamed ranks layout"):
        space_from_table(table, source="x")


def folds_of(tree: Path, place: str = "layout:xla:random") -> tuple[tuple[GraphFile, ...], ...]:
    files = find_graphs(tree, collections=(collection_named(place),), splits=("train",))
    return grouped_folds(files, 2, seed=0)


def validated(
    recipe: Recipe, model: str, folds: tuple[tuple[GraphFile, ...], ...], run: Path
) -> float:
    collection = folds[0][0].collection.name
    keys = {"features.scaling": {"choices": ["log1p"]}}
    space = space_over(keys, collection=collection, model=model, recipe=recipe)
    learned = [file for fold in folds for file in fold]
    return TuningObjective(recipe, space, learned, folds, run).cross_validate(recipe, run)


def value_by_hand(model: str, folds: tuple[tuple[GraphFile, ...], ...], run: Path) -> float:
    means = []
    for number, held_out in enumerate(folds):
        ranker, values = load_model(run / f"fold-{number}"), []
        for graph in map(read_graph, held_out):
            order = np.argsort(ranker.score(graph), kind="stable")
            if model == "tile_boosting":
                values.append(tile_score(order[:5], graph.runtime))
            else:
                values.append(kendall_tau(np.argsort(order), graph.runtime_ns))
        means.append(np.mean(values))
    return float(np.mean(means))


@pytest.mark.parametrize(
    ("place", "model"), [("layout:xla:random", "cross_config_sage"), ("tile:xla", "tile_boosting")]
)
def test_a_value_is_the_mean_over_folds_of_graphs_not_learned_from(
    place: str, model: str, tiny_tree: Path, tmp_path: Path
) -> None:
    tree = tiny_tree
    # The tiny tree has only one tile family.
    if place == "tile:xla":
        tree = tmp_path / "data"
        plan = PLANS["tiny"]._replace(layout_graphs=(0, 0, 0), tile_kernels=(12, 0, 0))
        synthesize(tree, list(planned_graphs(plan)))
    folds, run = folds_of(tree, place), tmp_path / "run"
    result = validated(small_recipe(), model, folds, run)
    assert result == pytest.approx(value_by_hand(model, folds, run), abs=1e-12)
    assert is_done(run)
    assert validated(small_recipe(), model, folds, run) == result
    with pytest.raises(UsageError, match="was begun with"):
        other = small_recipe(**{"cross_config_sage.hidden": 16})
        validated(other, model, folds, run)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_trial_that_is_surely_worse_than_the_best_is_pruned() -> None:
    own, rng = space_over(PARAMETERS, pruner="wilcoxon").study, np.random.default_rng(0)
    study = optuna.create_study(direction="maximize", pruner=pruner_of(own))
    best, pruned = rng.uniform(0.5, 0.9, 12), []
    for shift in (0.0, -0.3, -0.02, 0.1):
        values = best + shift + (rng.normal(0, 0.05, 12) if study.trials else 0)
        trial = study.ask()
        after_fold = report_folds(trial, own, never_prune=shift == 0)
        difference = (values - best)[:6]
        is_worse = shift < 0 and (
            wilcoxon(difference, alternative="less", zero_method="zsplit").pvalue < P_THRESHOLD
        )
        pruned.append(is_worse)
        try:
            after_fold(list(values[:6]))
            after_fold(list(values[6:]))
            study.tell(trial, float(np.mean(values)))
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        n_reported = 6 if is_worse else 12
        reported = study.trials[-1].intermediate_values
        assert reported == pytest.approx(dict(enumerate(values[:n_reported])))
    assert pruned == [False, True, pruned[2], False]


@pytest.mark.filterwarnings("error::optuna.exceptions.ExperimentalWarning")
def test_a_pruned_trial_is_recorded_and_counts(tiny_tree: Path, tmp_path: Path) -> None:
    space = space_over(PARAMETERS, pruner="wilcoxon")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("optuna.pruners.WilcoxonPruner.prune", lambda *_: True)
        result = search(tiny_tree, tmp_path, trials=2, space=space)
    assert {t.state: t.value is None for t in result.trials} == {"complete": False, "pruned": True}
    folder = tmp_path / "out" / "trials" / "1"
    assert is_done(folder / "fold-0") and not (folder / "fold-1").exists()
    assert re.match(r"pruned after 1 of 2 folds, mean so far -?0\.", result.trials[1].reason or "")
    assert outcome(search(tiny_tree, tmp_path, trials=2, space=space)) == outcome(result)
