"""Search spaces are read, checked and sampled; what a trial is worth, and when it is given up."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from scipy.stats import wilcoxon

from common.errors import UsageError
from common.metrics import kendall_tau, tile_score
from common.progress import watched_by
from common.settings import CONFIGS
from data.families import grouped_folds
from data.graph_store.stored_graph import read_graph
from data.synthetic.write import PLANS, planned_graphs, synthesize
from data.tree import GraphFile, collection_named, find_graphs
from models.config.recipe import Recipe, load_recipe
from models.registry import load_model
from models.run_folder import is_done
from pipeline.tuning.objective import (
    P_THRESHOLD,
    CrossValidation,
    SearchSpace,
    StudyConfig,
    TuningObjective,
    give_up_or_go_on,
    pruner_of,
    space_from_table,
    value_at,
    with_values,
)
from pipeline.tuning.result import TuneResult
from pipeline.tuning.storage import REASON
from tests.pipeline.tuning.small_study import PARAMETERS, outcome, search, small_recipe, space_over

STUDY = """
[study]
collection = "layout:xla:default"
model = "cross_config_sage"
"""
SHIPPED = [path.read_text() for path in sorted((CONFIGS / "tune").glob("*.toml"))]
WEIGHT = "blend.weights.layout_boosting"
MODELS = ("layout_linear", "layout_boosting")
BLENDS = {"blend.method": {"choices": ["minmax-mean", "rank-mean"]}, WEIGHT: {"low": 0, "high": 8}}


def space_of(text: str, *, study: str = STUDY, recipe: Recipe | None = None) -> Any:
    return space_from_table(tomllib.loads(study + text), recipe, source="search space mine")


def draw(study: optuna.Study, space: SearchSpace) -> dict[str, Any]:
    trial = study.ask()
    return {key: parameter.suggest(trial, key) for key, parameter in space.parameters.items()}


@pytest.mark.parametrize("text", SHIPPED)
def test_each_shipped_space_is_read_and_makes_recipes(text: str) -> None:
    cpu = load_recipe("cpu")
    space = space_of(text, study="", recipe=cpu)
    assert (space.study.finalists, space.study.seeds) == (3, 3)
    own = cpu.model_dump(mode="json")
    outside = [k for k, p in space.parameters.items() if not p.holds(value_at(own, k))]
    assert not outside, "the recipe itself is a trial of the space"
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    defaults = Recipe().model_dump(mode="json")
    drawn = [draw(study, space) for _ in range(30)]
    for values in drawn:
        recipe = Recipe.from_table(with_values(defaults, values), source="drawn")
        table = recipe.model_dump(mode="json")
        assert {key: value_at(table, key) for key in values} == values
    for key in space.parameters:
        assert len({values[key] for values in drawn}) > 1, key


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
        (STUDY, f'["{HIDDEN}"]\nlow = 8.0\nhigh = 9.0', "valid integer"),
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
        (study_of("blend", LAYOUT), ROUNDS, "has no effect; trials of 'blend' read"),
        (study_of("blend", LAYOUT), '["blend.choose"]\nchoices = [1]', "'blend.choose' has no"),
        (STUDY, f"[{HIDDEN}]\nchoices = [8]", rf'expected: \["{HIDDEN}"\], not \[{HIDDEN}\]'),
        (study_of("tile_linear", TILE), PRUNE, "unnamed ranks tile configs by late_fusion_sage, "),
        (study_of("blend", LAYOUT), '["blend.weights.tgraph"]\nchoices = [1]', "tgraph' has no ef"),
        (study_of("blend", TILE), '["threads"]\nchoices = [1]', "'threads' has no effect"),
    ],
)
def test_what_makes_no_recipe_or_changes_no_trial_is_refused_by_name(
    study: str, text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=f"^(search space mine|collection).*{message}"):
        space_of(text, study=study)


def test_a_model_of_ones_own_is_searched_near_the_recipe_that_names_it() -> None:
    recipe = load_recipe("smoke", ["layout.models=[examples.gat:Gat]"])
    [name] = recipe.own_models
    study = {"collection": "layout:xla:random", "model": name}
    table = {"study": study, f"{name}.hidden": {"choices": [8, 16]}}
    assert space_from_table(table, recipe, source="x").study.model == name
    with pytest.raises(UsageError, match=f"'study.model' is '{name}': recipe unnamed ranks layout"):
        space_from_table(table, source="x")


def blend_recipe(**values: Any) -> Recipe:
    own = {"layout_boosting.num_boost_round": 3, "layout_boosting.min_rows_per_leaf": 2}
    return small_recipe(**own, **values, **{"layout.models": list(MODELS)})


def folds_of(tree: Path, place: str = "layout:xla:random") -> tuple[tuple[GraphFile, ...], ...]:
    files = find_graphs(tree, collections=(collection_named(place),), splits=("train",))
    return grouped_folds(files, 2, seed=0)


def validated(
    recipe: Recipe,
    model: str,
    folds: tuple[tuple[GraphFile, ...], ...],
    run: Path,
    out: Path | None = None,
) -> CrossValidation:
    collection = folds[0][0].collection.name
    keys = {"features.scaling": {"choices": ["log1p"]}}
    space = space_over(keys, collection=collection, model=model, recipe=recipe)
    learned = [file for fold in folds for file in fold]
    return TuningObjective(recipe, space, learned, folds, out or run).cross_validate(recipe, run)


def trainings(out: Path) -> list[str]:
    """Name the models that the trials of a blend's study have trained, once per training."""
    return sorted(path.parent.name for path in out.glob("**/fold-*/*/DONE"))


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
    if place == "tile:xla":  # of which the tiny tree has one family
        tree = tmp_path / "data"
        plan = PLANS["tiny"]._replace(layout_graphs=(0, 0, 0), tile_kernels=(12, 0, 0))
        synthesize(tree, list(planned_graphs(plan)))
    folds, run = folds_of(tree, place), tmp_path / "run"
    result = validated(small_recipe(), model, folds, run)
    assert result.value == pytest.approx(value_by_hand(model, folds, run), abs=1e-12)
    assert is_done(run)
    assert validated(small_recipe(), model, folds, run) == result
    with pytest.raises(UsageError, match="was begun with"):
        other = small_recipe(**{"cross_config_sage.hidden": 16})
        validated(other, model, folds, run)


@pytest.fixture(scope="module")
def blended(
    tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TuneResult, list[str]]:
    """A folder with a study of four trials that differ in how they blend, and what it said."""
    folder = tmp_path_factory.mktemp("blends")
    space = space_over(BLENDS, model="blend", recipe=blend_recipe())
    said = list[str]()
    with watched_by(lambda what, done, _: said.append(what.split(" on ")[0]) if not done else None):
        result = search(tiny_tree, folder, trials=4, space=space, recipe=blend_recipe())
    return folder, result, said


def test_a_blends_value_is_that_of_models_trained_for_it_alone(
    tiny_tree: Path, blended: tuple[Path, TuneResult, list[str]], tmp_path: Path
) -> None:
    folder, result, said = blended
    assert [what for what in said if not what.startswith("pack ")][:4] == [
        "train layout_linear",
        "predict held-out graphs by layout_linear",
        "train layout_boosting",
        "predict held-out graphs by layout_boosting",
    ]
    assert [trial.state for trial in result.trials] == ["complete"] * 4
    assert result.trials[0].params == {"blend.method": "minmax-mean", WEIGHT: 1}
    assert len({trial.params["blend.method"] for trial in result.trials}) == 2
    for trial in result.trials:
        own = blend_recipe(**trial.params)
        alone = validated(own, "blend", folds_of(tiny_tree), tmp_path / str(trial.number))
        assert trial.value == pytest.approx(alone.value, abs=1e-9)
    assert len({trial.value for trial in result.trials}) > 1
    once = sorted(2 * [f"{model}-seed0" for model in MODELS])
    assert trainings(folder / "out") == once, "trials that differ in the blend alone train once"


def test_keys_of_a_model_without_weight_decide_nothing(tmp_path: Path) -> None:
    key, recipe = "layout_boosting.num_leaves", blend_recipe()
    space = space_over(BLENDS | {key: {"low": 2, "high": 9}}, model="blend", recipe=recipe)
    objective = TuningObjective(recipe, space, [], (), tmp_path)
    one, other = ({"blend.method": "rank-mean", key: leaves} for leaves in (3, 4))
    assert objective.decisive(one) != objective.decisive(other)
    assert objective.decisive(one | {WEIGHT: 0}) == objective.decisive(other | {WEIGHT: 0.0})


def test_kept_scores_change_no_value_and_tell_features_apart(
    tiny_tree: Path, tmp_path: Path
) -> None:
    folds, kept = folds_of(tiny_tree), tmp_path / "kept"
    for scaling in ("log1p", "log1p-standardise"):
        recipe = blend_recipe(**{"features.scaling": scaling})
        own = validated(recipe, "blend", folds, tmp_path / scaling, kept)
        assert len(trainings(tmp_path / scaling)) == 4
    anew = validated(recipe, "blend", folds, tmp_path / "anew")
    assert own.per_graph == anew.per_graph and own.folds == anew.folds


def config(pruner: str, folds: int) -> StudyConfig:
    return space_over(PARAMETERS, pruner=pruner, folds=folds).study


def run(
    study: optuna.Study, own: StudyConfig, folds: list[Mapping[str, float]], *, never: bool = False
) -> int:
    """Tell a trial its folds until it is pruned; return how many it was told."""
    trial = study.ask()
    after_fold = give_up_or_go_on(trial, own, never=never)
    for number, fold in enumerate(folds, start=1):
        try:
            after_fold(fold)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return number
    study.tell(trial, float(np.mean([np.mean(list(fold.values())) for fold in folds])))
    return len(folds)


def study_with(own: StudyConfig) -> optuna.Study:
    return optuna.create_study(direction="maximize", pruner=pruner_of(own), study_name="s")


def test_wilcoxon_gives_up_what_is_surely_worse_than_the_best_graph_by_graph() -> None:
    def two_folds(values: Any) -> list[Mapping[str, float]]:
        halves = np.split(np.asarray(values), 2)
        return [{f"{i}-{j}": float(v) for j, v in enumerate(h)} for i, h in enumerate(halves)]

    own, rng = config("wilcoxon", 2), np.random.default_rng(0)
    best = rng.uniform(0.5, 0.9, 12)
    pruned = []
    for shift in (-0.3, -0.02, 0.0, 0.1):
        study = study_with(own)
        run(study, own, two_folds(best), never=True)
        values = best + shift + rng.normal(0, 0.05, 12)
        told = run(study, own, two_folds(values))
        difference = (values - best)[:6]
        sure = wilcoxon(difference, alternative="less", zero_method="zsplit").pvalue < P_THRESHOLD
        assert told == (1 if sure else 2)
        pruned.append(bool(sure))
        steps = study.trials[1].intermediate_values
        assert steps == pytest.approx(dict(enumerate(values[: 6 * told])))
    assert pruned[0] and not pruned[-1]


def test_hyperband_gives_up_the_worse_half_and_no_baseline() -> None:
    own = config("hyperband", 4)
    rising, falling = study_with(own), study_with(own)
    for n in range(12):
        assert run(rising, own, [{"a": 0.1 + n / 20}] * 4) == 4
        run(falling, own, [{"a": 0.9 - n / 20}] * 4)
    told = [len(trial.intermediate_values) for trial in falling.trials]
    assert told[0] == 4 and 1 in told and 3 not in told, told  # compared after folds 1 and 2
    assert run(falling, own, [{"a": 0.1, "b": -0.3}, *[{"a": -1.0}] * 3], never=True) == 4
    assert falling.trials[-1].intermediate_values[2] == pytest.approx((-0.1 - 1) / 2)
    reasons = [t.user_attrs[REASON] for t in falling.trials if t.state.name == "PRUNED"]
    assert reasons[0].startswith("pruned after 1 of 4 folds, mean so far 0.")


def test_a_pruned_trial_is_recorded_and_counts(tiny_tree: Path, tmp_path: Path) -> None:
    space = space_over(PARAMETERS, pruner="hyperband")
    result = search(tiny_tree, tmp_path, trials=6, space=space)
    assert len(result.trials) == 6 and result.trials[0].state == "complete"
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert pruned, [trial.state for trial in result.trials]
    for trial in pruned:
        folder = tmp_path / "out" / "trials" / str(trial.number)
        assert is_done(folder / "fold-0") and not (folder / "fold-1").exists()
        assert trial.value is None and "1 of 2 folds" in (trial.reason or "")
    assert result.best.state == "complete"
    assert outcome(search(tiny_tree, tmp_path, trials=6, space=space)) == outcome(result)
