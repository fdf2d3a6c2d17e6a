"""Storages of studies: several workers, killed workers, databases."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from common.errors import PipelineError
from common.settings import ROOT
from models.config.recipe import load_recipe
from models.run_folder import is_done
from pipeline.tuning.storage.journal import beside
from pipeline.tuning.storage.storage import open_storage
from tests.models.small_study import (
    PARAMETERS,
    SPACE,
    outcome,
    recipe_table,
    search,
    space_over,
)

SLOW = recipe_table(**{"cross_config_sage.training.steps": 60})


def test_a_journal_with_a_half_written_line_goes_on(tiny_tree: Path, tmp_path: Path) -> None:
    first = search(tiny_tree, tmp_path, trials=2)
    with (tmp_path / "journal.log").open("ab") as journal:
        journal.write(b'{"op_code":4,"wor')  # what a worker killed in mid-write leaves
    for _ in range(2):
        assert outcome(search(tiny_tree, tmp_path, trials=3))[:2] == outcome(first)


WORKER = """
import json, sys
from pathlib import Path
from common.errors import PipelineError
from pipeline.tuning.space import space_from_table
from pipeline.tuning.tune import tune
job = json.load(open(sys.argv[1]))
space = space_from_table(job["space"], source="worker")
try:
    tune(
        job["table"], space, Path(job["data"]), storage=job["storage"], out=Path(job["out"]),
        trials=job["trials"], workers=job["workers"], say=lambda line: print(line, file=sys.stderr),
    )
except PipelineError as error:
    sys.exit(str(error))
"""


def start(
    tiny_tree: Path, folder: Path, *, trials: int = 3, workers: int = 1, storage: str = ""
) -> "subprocess.Popen[str]":
    """Start a search of SLOW as a process of its own."""
    parameters = {key: p.model_dump(exclude_none=True) for key, p in SPACE.parameters.items()}
    job = {
        "space": {"study": SPACE.study.model_dump(), **parameters},
        "table": SLOW,
        "data": str(tiny_tree),
        "storage": storage or str(folder / "journal.log"),
        "out": str(folder / "out"),
        "trials": trials,
        "workers": workers,
    }
    (folder / "job.json").write_text(json.dumps(job))
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder / "job.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 90
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert path.exists(), f"{path} never came; exit code {process.poll()}"


def pids(journal: Path) -> list[int]:
    return [int(file.name.split("-")[-2]) for file in beside(journal, "workers").iterdir()]


@pytest.mark.slow
def test_a_worker_killed_in_mid_trial_loses_no_trial(tiny_tree: Path, tmp_path: Path) -> None:
    worker = start(tiny_tree, tmp_path)
    begun = tmp_path / "out" / "trials" / "1" / "fold-0" / "config.toml"
    wait_for(begun, worker)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    assert worker.returncode == -signal.SIGKILL, "the worker ended before it could be killed"
    assert begun.exists() and not is_done(tmp_path / "out" / "trials" / "1")

    result = search(tiny_tree, tmp_path, trials=3, table=SLOW)
    assert [t.state for t in result.trials] == ["complete", "fail", "complete", "complete"]
    lost, retried = result.trials[1], result.trials[2]
    assert lost.params == retried.params
    assert "killed" in (lost.reason or "")
    assert len(search(tiny_tree, tmp_path, trials=3, table=SLOW).trials) == 4


@pytest.mark.slow
def test_two_commands_and_four_workers_share_one_budget(tiny_tree: Path, tmp_path: Path) -> None:
    one = start(tiny_tree, tmp_path, trials=9, workers=2)
    wait_for(tmp_path / "out" / "trials" / "0" / "fold-0", one)
    other = start(tiny_tree, tmp_path, trials=9, workers=2)
    wait_for(tmp_path / "out" / "trials" / "4" / "fold-0", one)
    parents = {one.pid, other.pid}
    victim = next(pid for pid in pids(tmp_path / "journal.log") if pid not in parents)
    os.kill(victim, signal.SIGKILL)
    said = one.communicate()[1] + other.communicate()[1]
    assert (one.returncode, other.returncode) == (0, 0), said
    assert f"worker {victim} was killed by signal 9 (SIGKILL)" in said
    result = search(tiny_tree, tmp_path, trials=9, table=SLOW)
    states = [trial.state for trial in result.trials]
    assert states.count("complete") == 9
    assert states.count("fail") == len(states) - 9 <= 1  # it may have been between two trials
    assert len({trial.worker for trial in result.trials}) >= 3
    assert is_done(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_search_that_is_told_to_stop_ends_its_workers(
    stop: signal.Signals, tiny_tree: Path, tmp_path: Path
) -> None:
    parent = start(tiny_tree, tmp_path, trials=40, workers=2)
    wait_for(tmp_path / "out" / "trials" / "1" / "fold-0", parent)
    parent.send_signal(stop)
    said = parent.communicate(timeout=60)[1]
    assert parent.returncode == -signal.SIGINT, said  # as Python ends on KeyboardInterrupt
    assert not list(beside(tmp_path / "journal.log", "workers").iterdir())
    with open_storage(tmp_path / "journal.log") as shared:
        [name] = optuna.get_all_study_names(shared.storage)
        trials = shared.study(name).get_trials()
    assert len(trials) < 10
    assert all(trial.state.is_finished() for trial in trials)


@pytest.mark.slow
def test_workers_of_a_killed_parent_end_too(tiny_tree: Path, tmp_path: Path) -> None:
    parent = start(tiny_tree, tmp_path, trials=40, workers=2)
    wait_for(tmp_path / "out" / "trials" / "1" / "fold-0", parent)
    parent.kill()
    parent.communicate(timeout=60)  # which ends once no worker has the pipe any more
    assert len(list((tmp_path / "out" / "trials").iterdir())) < 10


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_baseline_that_is_interrupted_twice_is_tried_again(
    stop: BaseException, tiny_tree: Path, tmp_path: Path
) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise stop

    for _ in range(2):
        with pytest.raises(type(stop)):
            search(tiny_tree, tmp_path, trials=2, progress=interrupt)
    result = search(tiny_tree, tmp_path, trials=2)
    assert [t.state for t in result.trials] == ["fail", "fail", "complete", "complete"]
    assert result.baseline_value == result.trials[2].value is not None
    assert "not compared" not in result.best_recipe.read_text()
    assert optuna.logging.get_verbosity() == optuna.logging.INFO


def test_finals_that_are_interrupted_twice_are_tried_again(tiny_tree: Path, tmp_path: Path) -> None:
    two = space_over(PARAMETERS, finalists=1, seeds=1)
    search(tiny_tree, tmp_path, trials=1)

    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            search(tiny_tree, tmp_path, trials=1, space=two, progress=interrupt)
    verdict = search(tiny_tree, tmp_path, trials=1, space=two).verdict
    assert verdict is not None and verdict.reason == "no finalist was better than the baseline"


def test_best_toml_says_that_a_lost_baseline_was_not_compared(
    tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.tuning.worker.mark_interrupted", lambda trial: None)

    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    for _ in range(2):  # told as Optuna tells of the dead: without a word of the worker's
        with pytest.raises(KeyboardInterrupt):
            search(tiny_tree, tmp_path, trials=2, progress=interrupt)
    said: list[str] = []
    result = search(tiny_tree, tmp_path, trials=2, say=said.append)
    assert [t.state for t in result.trials] == ["fail", "fail", "complete"]
    remark = "trial 2: not compared with the recipe as it was given, which has no value"
    assert remark in result.best_recipe.read_text().splitlines()[0].lower()
    assert f"best.toml, {remark}" in said
    load_recipe(str(result.best_recipe))


def test_a_database_url_serves_as_storage(tiny_tree: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search(tiny_tree, tmp_path, trials=1, storage=url)
    result = search(tiny_tree, tmp_path, trials=2, storage=url)
    assert outcome(result) == outcome(search(tiny_tree, tmp_path / "journal", trials=2))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite:////no/such/folder/study.db", "cannot be opened"),
        (
            "postgresql+psycopg2://me:secret@localhost/db",
            "driver is not installed|cannot be opened",
        ),
        ("nodatabase://x/y", "expected postgresql"),
        ("sqlite://", "names no database"),
        ("a://b:c:d/", "not a database URL"),
    ],
)
def test_a_database_out_of_reach_is_one_line_without_password(
    url: str, message: str, tiny_tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        search(tiny_tree, tmp_path, trials=1, storage=url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
