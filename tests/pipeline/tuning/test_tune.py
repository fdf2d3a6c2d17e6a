"""Tuning on a tiny synthetic tree: budget, resumption, failures, and what is never read."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError, UsageError
from common.metrics import kendall_tau, tile_score
from data.read import read_graph
from data.synthetic import PLANS, synthesize
from data.tree import collection_named, find_graphs
from models.config.recipe import Recipe, load_recipe
from models.run_folder import begin, is_done, read_config
from models.train import load_model
from models.training.folds import grouped_folds
from pipeline.tuning.cross_validate import cross_validate
from pipeline.tuning.result import TuneResult
from pipeline.tuning.space import value_at, with_values
from tests.command_line import call
from tests.models.small_study import (
    DIVERGES,
    LEARNING_RATE,
    PARAMETERS,
    SPACE,
    outcome,
    recipe_table,
    search,
    space_over,
)


def files_below(folder: Path) -> dict[str, float]:
    return {str(p): p.stat().st_mtime for p in folder.rglob("*") if "report.json" in p.name}


@pytest.fixture(scope="module")
def searched(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TuneResult]:
    """A folder with a study of three trials; copy it before going on with it."""
    folder = tmp_path_factory.mktemp("searched")
    return folder, search(tiny_tree, folder, trials=3)


def test_the_baseline_comes_first_and_the_best_trial_wins(
    tiny_tree: Path, searched: tuple[Path, TuneResult]
) -> None:
    folder, result = searched
    assert [trial.state for trial in result.trials] == ["complete"] * 3
    assert [trial.is_baseline for trial in result.trials] == [True, False, False]
    own = recipe_table()
    assert result.trials[0].params == {key: value_at(own, key) for key in SPACE.parameters}
    assert result.baseline_value == result.trials[0].value
    assert result.best_value == max(trial.value or -2 for trial in result.trials)
    assert len({trial.params[LEARNING_RATE] for trial in result.trials}) == 3
    assert len({trial.value for trial in result.trials}) > 1
    assert json.loads((folder / "out" / "trials.json").read_text()) == result.as_dict()["trials"]
    for number in range(3):
        trial = folder / "out" / "trials" / str(number)
        assert is_done(trial) and is_done(trial / "fold-0") and is_done(trial / "fold-1")
    assert is_done(folder / "out")


def test_the_winners_recipe_reproduces_its_value(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    _, result = searched
    assert not result.is_baseline, "the test needs a winner whose recipe differs"
    recipe = load_recipe(str(result.best_recipe))
    expected = with_values(recipe_table(), result.best.params)
    assert recipe.model_dump(mode="json") == Recipe.model_validate(expected).model_dump(mode="json")
    files = find_graphs(
        tiny_tree, collections=(collection_named("layout:xla:random"),), splits=("train",)
    )
    folds = grouped_folds(files, 2, seed=0)
    again = cross_validate(recipe, "cross_config_sage", folds, tmp_path / "again")
    assert again.value == result.best_value


def test_a_value_is_the_mean_over_folds_of_graphs_not_learned_from(
    tiny_tree: Path, searched: tuple[Path, TuneResult]
) -> None:
    folder, result = searched
    place = collection_named("layout:xla:random")
    files = find_graphs(tiny_tree, collections=(place,), splits=("train",))
    means = []
    for number, held_out in enumerate(grouped_folds(files, 2, seed=0)):
        ranker = load_model(folder / "out" / "trials" / "1" / f"fold-{number}")
        taus = []
        for graph in map(read_graph, held_out):
            position = np.argsort(np.argsort(ranker.score(graph), kind="stable"))
            taus.append(kendall_tau(position, graph.runtime_ns))
        means.append(np.mean(taus))
    assert result.trials[1].value == pytest.approx(np.mean(means), abs=1e-12)


def test_a_smaller_budget_first_ends_as_one_undisturbed_call(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    first = search(tiny_tree, tmp_path, trials=1)
    assert len(first.trials) == 1 and first.is_baseline
    resumed = search(tiny_tree, tmp_path, trials=3)
    assert outcome(resumed) == outcome(searched[1])


def test_the_same_budget_again_does_nothing(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    before = files_below(tmp_path)
    said: list[str] = []
    again = search(tiny_tree, tmp_path, trials=3, say=said.append)
    assert outcome(again) == outcome(searched[1])
    assert files_below(tmp_path) == before
    assert not [line for line in said if line.startswith("trial ")]


def test_valid_and_test_files_are_never_opened(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_tree, damaged)
    for file in damaged.rglob("*.npz"):
        if file.parent.name != "train":
            file.write_bytes(b"no archive")
    result = search(damaged, tmp_path, trials=2)
    assert outcome(result) == outcome(searched[1])[:2]
    assert result.study == searched[1].study


def test_a_failing_trial_is_recorded_and_the_study_goes_on(tiny_tree: Path, tmp_path: Path) -> None:
    said: list[str] = []
    result = search(tiny_tree, tmp_path, trials=3, space=DIVERGES, say=said.append)
    assert [trial.state for trial in result.trials] == ["complete", "fail", "fail"]
    assert all("the loss is" in (trial.reason or "") for trial in result.trials[1:])
    assert "\n" not in (result.trials[1].reason or "")
    history = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert history[1]["reason"] == result.trials[1].reason and history[1]["value"] is None
    assert result.is_baseline and result.best_value == result.baseline_value
    assert said[-1].startswith("no trial beat the recipe")
    assert any("lies outside the search space" in line for line in said)
    best = load_recipe(str(result.best_recipe)).model_dump(mode="json")
    assert best == Recipe.model_validate(recipe_table()).model_dump(mode="json")
    assert len(search(tiny_tree, tmp_path, trials=3, space=DIVERGES).trials) == 3


def test_a_model_that_does_not_fit_into_memory_fails_its_trial_alone(
    tiny_tree: Path, tmp_path: Path
) -> None:
    petabytes = space_over({"cross_config_sage.hidden": {"choices": [10**15]}})
    result = search(tiny_tree, tmp_path, trials=2, space=petabytes)
    assert [trial.state for trial in result.trials] == ["complete", "fail"]
    assert (result.trials[1].reason or "").startswith("out of memory: ")


def test_a_folder_that_cannot_be_written_stops_the_study_and_costs_no_trial(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    search(tiny_tree, tmp_path, trials=1)
    trials = tmp_path / "out" / "trials"
    shutil.rmtree(trials)
    trials.write_text("in the way")
    with pytest.raises(PipelineError, match="cannot be written"):
        search(tiny_tree, tmp_path, trials=3)
    trials.unlink()
    result = search(tiny_tree, tmp_path, trials=3)
    assert [t.state for t in result.trials] == ["complete", "fail", "complete", "complete"]
    assert result.trials[2].params == searched[1].trials[1].params


def test_no_success_at_all_is_an_error_that_names_the_reason(
    tiny_tree: Path, tmp_path: Path
) -> None:
    table = recipe_table(**{LEARNING_RATE: 1e30})
    with pytest.raises(PipelineError, match=r"none of 2 trials succeeded; the last one: .*loss is"):
        search(tiny_tree, tmp_path, trials=2, space=DIVERGES, table=table)
    assert not (tmp_path / "out" / "best.toml").exists()


def test_time_that_is_up_begins_no_trial(tiny_tree: Path, tmp_path: Path) -> None:
    search(tiny_tree, tmp_path, trials=1)
    said: list[str] = []
    result = search(tiny_tree, tmp_path, trials=9, timeout_s=0, say=said.append)
    assert len(result.trials) == 1
    assert "time is up after 1 of 9 trials" in said


def test_time_that_is_up_before_the_first_trial_is_told_as_such(
    tiny_tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="time was up before the first trial ended"):
        search(tiny_tree, tmp_path, trials=1, timeout_s=0)
    assert len(search(tiny_tree, tmp_path, trials=1).trials) == 1


@pytest.mark.parametrize("seconds", ["nan", "-1", "inf"])
def test_seconds_that_are_none_are_wrong_usage(
    seconds: str, tiny_tree: Path, tmp_path: Path
) -> None:
    options = ("--data", tiny_tree, "--out", tmp_path / "out", "--recipe", "smoke")
    said = call("tune", *options, "--timeout-s", seconds, expect=2)
    assert "expected seconds, 0 or more" in said and not (tmp_path / "out").exists()


def test_sigterm_ends_the_command_as_all_others(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.tuning.tune.work_on", lambda *args, **options: signal.raise_signal(signal.SIGTERM)
    )
    options = ("--data", tiny_tree, "--out", tmp_path / "out", "--recipe", "smoke")
    space = tmp_path / "space.toml"
    space.write_text(
        '[study]\ncollection = "layout:xla:random"\nmodel = "cross_config_sage"\n'
        '["cross_config_sage.hidden"]\nchoices = [8, 16]\n'
    )
    said = call("tune", *options, "--space", space, expect=143)
    assert "terminated; what was finished is kept" in said


def test_another_question_is_another_study(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    wider = recipe_table(**{"cross_config_sage.layout_width": 2})
    with pytest.raises(UsageError, match=r"recipe\.cross_config_sage\.layout_width = 4, now 2"):
        search(tiny_tree, tmp_path, trials=1, table=wider)
    shared = tmp_path / "journal.log"
    other = search(tiny_tree, tmp_path / "other", trials=1, table=wider, storage=shared)
    assert other.study != searched[1].study
    assert len(other.trials) == 1 and other.trials[0].is_baseline
    with pytest.raises(UsageError, match="storage knows no such trial"):
        search(tiny_tree, tmp_path, trials=4, storage=tmp_path / "empty.log")


def test_machines_that_differ_in_threads_alone_share_a_study(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    said: list[str] = []
    elsewhere = recipe_table(threads=2, accelerator="cpu")
    resumed = search(tiny_tree, tmp_path, trials=3, table=elsewhere, say=said.append)
    assert outcome(resumed) == outcome(searched[1])
    assert load_recipe(str(resumed.best_recipe)).threads == 2
    journal = tmp_path / "journal.log"
    beside = search(
        tiny_tree, tmp_path / "b", trials=3, table=elsewhere, storage=journal, say=said.append
    )
    assert beside.study == searched[1].study
    assert not any("a new study begins" in line for line in said)
    timed = space_over(PARAMETERS, objectives="score-and-training-time")
    search(tiny_tree, tmp_path / "c", trials=1, space=timed, storage=journal, say=said.append)
    assert "a new study begins beside 1 in the storage, of another question" in said
    with pytest.raises(UsageError, match=r"recipe\.accelerator = 'auto', now 'cpu'"):
        search(tiny_tree, tmp_path / "c", trials=1, space=timed, storage=journal, table=elsewhere)


def test_a_study_of_before_a_key_was_added_goes_on(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    older = read_config(searched[0] / "out")
    del older["recipe"]["cross_config_sage"]["training"]["early_stop"]
    older["recipe"] |= {"threads": 7, "accelerator": "cpu"}
    begin(tmp_path / "out", older, resume=False)
    first = search(tiny_tree, tmp_path, trials=1)
    assert first.study != searched[1].study
    resumed = search(tiny_tree, tmp_path, trials=2)
    assert resumed.study == first.study
    assert outcome(resumed) == outcome(searched[1])[:2]


def test_tile_kernels_are_judged_by_tile_score(tmp_path: Path) -> None:
    data = tmp_path / "data"
    synthesize(data, plan=replace(PLANS["tiny"], layout_graphs=(0, 0, 0), tile_kernels=(12, 0, 0)))
    space = space_over(
        {"tile_boosting.leaves": {"low": 2, "high": 31}},
        collection="tile:xla",
        model="tile_boosting",
    )
    result = search(data, tmp_path, trials=2, space=space)
    place = collection_named("tile:xla")
    folds = grouped_folds(find_graphs(data, collections=(place,), splits=("train",)), 2, seed=0)
    means = []
    for number, held_out in enumerate(folds):
        ranker = load_model(tmp_path / "out" / "trials" / "0" / f"fold-{number}")
        scores = []
        for graph in map(read_graph, held_out):
            picks = np.argsort(ranker.score(graph), kind="stable")[:5]
            scores.append(tile_score(picks, graph.normalized_runtime))
        means.append(np.mean(scores))
    assert result.trials[0].value == pytest.approx(np.mean(means), abs=1e-12)


def test_one_architecture_cannot_be_split(tiny_tree: Path, tmp_path: Path) -> None:
    space = space_over(
        {"tile_boosting.leaves": {"low": 2, "high": 31}},
        collection="tile:xla",
        model="tile_boosting",
    )
    with pytest.raises(PipelineError, match="of 1 architectures"):
        search(tiny_tree, tmp_path, trials=1, space=space)


def test_a_budget_of_nothing_is_refused(tiny_tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trials = 0"):
        search(tiny_tree, tmp_path, trials=0)
