"""Tuning on a tiny synthetic tree: budget, resumption, failures, and what is never read."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.errors import PipelineError, UsageError
from data.read import read_graph
from data.synthetic import PLANS, synthesize
from data.tree import collection_named, find_graphs
from models.cross_validate import cross_validate
from models.folds import grouped_folds
from models.metrics import kendall_tau, tile_score
from models.recipe import Recipe, load_recipe
from models.run_folder import is_done
from models.search_space import SearchSpace, space_from_table, value_at, with_values
from models.train import load_model
from models.tune_result import TuneResult
from models.tuning import tune
from settings import ROOT

LEARNING_RATE = "cross_config_sage.training.learning_rate"


def recipe_table(**values: Any) -> dict[str, Any]:
    """The smoke recipe with a yet smaller layout model that learns too slowly to win."""
    table = load_recipe("smoke").model_dump(mode="json")
    small = {"cross_config_sage.hidden": 8, "cross_config_sage.opcode_width": 4, "threads": 1}
    return with_values(table, {**small, LEARNING_RATE: 1e-4, **values})


def space_over(
    parameters: dict[str, Any],
    *,
    collection: str = "layout:xla:random",
    model: str = "cross_config_sage",
) -> SearchSpace:
    study = {"collection": collection, "model": model}
    return space_from_table({"study": study, **parameters}, source="search space test")


SPACE = space_over(
    {
        "cross_config_sage.configs_per_step": {"choices": [8, 16]},
        LEARNING_RATE: {"low": 1e-4, "high": 1e-1, "log": True},
    }
)
DIVERGES = space_over({LEARNING_RATE: {"choices": [1e30]}})


def search(
    data: Path, folder: Path, *, trials: int, space: SearchSpace = SPACE, **options: Any
) -> TuneResult:
    """Tune with the journal and the results in `folder`."""
    table = options.pop("table", recipe_table())
    storage = options.pop("storage", folder / "journal.log")
    return tune(table, space, data, storage=storage, trials=trials, out=folder / "out", **options)


def outcome(result: TuneResult) -> list[tuple[Any, ...]]:
    return [(t.number, t.state, t.value, t.params) for t in result.trials]


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


def test_a_journal_serves_one_worker_and_only_journals_are_mended(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    import fcntl

    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "journal.log"
    with journal.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(PipelineError, match="another worker is tuning"):
            search(tiny_tree, tmp_path, trials=3)
        held.write(b'{"op_code":4,"wor')  # what a worker killed in mid-write leaves
    for _ in range(2):
        assert outcome(search(tiny_tree, tmp_path, trials=4))[:3] == outcome(searched[1])
    notes = tmp_path / "notes.txt"
    notes.write_bytes(b"one line\nand half")
    with pytest.raises(PipelineError, match=r"notes\.txt: not a tuning journal"):
        search(tiny_tree, tmp_path, trials=3, storage=notes)
    assert notes.read_bytes() == b"one line\nand half"


WORKER = """
import json, sys
from pathlib import Path
from models.search_space import space_from_table
from models.tuning import tune
job = json.load(open(sys.argv[1]))
space = space_from_table(job["space"], source="worker")
tune(job["table"], space, Path(job["data"]), storage=job["storage"], trials=3, out=Path(job["out"]))
"""


def test_a_worker_killed_in_mid_trial_loses_no_trial(tiny_tree: Path, tmp_path: Path) -> None:
    table = recipe_table(**{"cross_config_sage.training.steps": 60})
    parameters = {key: p.model_dump(exclude_none=True) for key, p in SPACE.parameters.items()}
    job = {
        "space": {"study": SPACE.study.model_dump(), **parameters},
        "table": table,
        "data": str(tiny_tree),
        "storage": str(tmp_path / "journal.log"),
        "out": str(tmp_path / "out"),
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path / "job.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    begun = tmp_path / "out" / "trials" / "1" / "fold-0" / "config.toml"
    deadline = time.monotonic() + 60
    while not begun.exists() and worker.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL, "the worker ended before it could be killed"
    assert begun.exists() and not is_done(tmp_path / "out" / "trials" / "1")

    result = search(tiny_tree, tmp_path, trials=3, table=table)
    assert [t.state for t in result.trials] == ["complete", "fail", "complete", "complete"]
    lost, retried = result.trials[1], result.trials[2]
    assert lost.params == retried.params
    assert "killed" in (lost.reason or "")
    assert len(search(tiny_tree, tmp_path, trials=3, table=table).trials) == 4


def test_a_trial_whose_worker_dies_twice_is_given_up(tiny_tree: Path, tmp_path: Path) -> None:
    import optuna

    search(tiny_tree, tmp_path, trials=1)

    def die(message: str) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            search(tiny_tree, tmp_path, trials=3, progress=lambda what, done, total: die(what))
    result = search(tiny_tree, tmp_path, trials=3)
    assert [t.state for t in result.trials] == ["complete", "fail", "fail", "complete"]
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_a_database_url_serves_as_storage(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search(tiny_tree, tmp_path, trials=1, storage=url)
    result = search(tiny_tree, tmp_path, trials=2, storage=url)
    assert outcome(result) == outcome(searched[1])[:2]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/folder/study.db", "cannot be opened"),
        (
            "postgresql+psycopg2://me:secret@localhost/db",
            "driver is not installed|cannot be opened",
        ),
        ("nodatabase://x/y", "not a database URL|cannot be opened|driver"),
    ],
)
def test_a_database_out_of_reach_is_one_line_without_password(
    url: str, message: str, tiny_tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        search(tiny_tree, tmp_path, trials=1, storage=url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


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
