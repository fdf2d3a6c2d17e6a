"""Storages of searches: several workers, killed workers, databases."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import optuna
import pytest
import tomli_w
from optuna.storages._heartbeat import BaseHeartbeat

from common.errors import PipelineError
from common.progress import time_limit
from common.settings import ROOT
from models.run_folder import is_done
from pipeline.tuning import storage as storage_module
from pipeline.tuning import tune as tune_module
from pipeline.tuning.storage import (
    REASON,
    StorageLostError,
    count_trials,
    open_storage,
    patiently,
    requeue_lost,
)
from pipeline.tuning.tune import TuneResult
from tests.drills.processes import workers_of
from tests.pipeline.tuning.conftest import SPACE, Server, outcome, search, small_recipe

SLOW = small_recipe(**{"cross_config_sage.training.steps": 60})


def start(
    tiny_tree: Path, folder: Path, *, trials: int = 3, workers: int = 1, storage: str = ""
) -> "subprocess.Popen[str]":
    folder.mkdir(exist_ok=True)
    recipe, space = folder / "recipe.toml", folder / "space.toml"
    recipe.write_text(SLOW.to_toml())
    space.write_text(tomli_w.dumps(SPACE.to_table()))
    words = ["tune", "--recipe", recipe, "--space", space, "--data", tiny_tree]
    words += ["--storage", storage or folder / "journal.log", "--out", folder / "out"]
    words += ["--trials", str(trials), "--workers", str(workers)]
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 90
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    assert path.exists(), f"{path} never came; exit code {process.poll()}"


def test_a_journal_with_a_half_written_line_goes_on(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    with (tmp_path / "journal.log").open("ab") as journal:
        # A full disk can leave an incomplete line.
        journal.write(b'{"op_code":4,"wor')
    for _ in range(2):
        assert outcome(search(tiny_tree, tmp_path, trials=4))[:3] == outcome(searched[1])


def test_a_trial_that_kills_its_workers_is_tried_twice_more_and_counts_once(tmp_path: Path) -> None:
    with open_storage(tmp_path / "journal.log", tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        study.enqueue_trial({"x": 1.0}, user_attrs={"own": True})
        shared.locks.mkdir()
        for number in range(3):  # no worker holds the trial's lock
            trial = study.ask()
            assert trial.number == number and trial.suggest_float("x", 0, 2) == 1.0
            assert trial.user_attrs == {"own": True}
            assert requeue_lost(study, shared) == ([0] if number < 2 else [])
            assert requeue_lost(study, shared) == []
        living = study.ask()
        with shared.running("s", living.number):
            assert requeue_lost(study, shared) == []
        living.set_user_attr(REASON, "too bad")
        study.tell(living, state=optuna.trial.TrialState.FAIL)
        assert requeue_lost(study, shared) == []
        assert [trial.state.name for trial in study.trials] == ["FAIL"] * 4
        assert count_trials(study) == 2


@pytest.mark.parametrize(
    ("damage", "at", "message"),
    [
        (b"[1]\n", 4, "log: is damaged"),
        (b'{"op_code":4,"wor\n', 4, "log: is damaged"),
        (b"no journal\n", 0, "log: not a tuning journal"),
    ],
)
def test_damaged_journal_is_named_and_left_alone(
    damage: bytes, at: int, message: str, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    path = tmp_path / "journal.log"
    lines = (searched[0] / "journal.log").read_bytes().splitlines(keepends=True)
    path.write_bytes(content := b"".join([*lines[:at], damage, *lines[at:]]))
    with pytest.raises(PipelineError, match=message), open_storage(path, tmp_path):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql+psycopg2://me:secret@host/db", r"//\*\*\*@host/db: .*; expected postgresql"),
        ("postgresql+psycopg://me:to/p@secret@host/db", "has a second @"),
        ("postgresql+psycopg://me:to@p/secret@host/db", "has a second @"),
        ("postgresql+psycopg://me:a?secret@[::1]:1/db", r"//\*\*\*@\[::1\]:1/db: "),
        ("postgresql+psycopg://[::1]:1/db?password=secret", r"//\[::1\]:1/db: "),
        ("postgresql+psycopg://me:secret@/db?host=secret.invalid", r"host '\*\*\*\.invalid'"),
        ("sqlite://", "names no database"),
        ("a://b:c:d/", "not a database URL"),
        ("sqlite:////missing/study.db", "unable to open database file"),
    ],
)
def test_a_database_out_of_reach_is_one_line_without_password(
    url: str, message: str, tiny_tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        search(tiny_tree, tmp_path, trials=1, storage=url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists(), "the corrected command is not refused"


def test_trials_begun_here_are_judged_by_locks_and_others_by_heartbeats(
    server: Server, tmp_path: Path
) -> None:
    with open_storage(server.url(), tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        shared.locks.mkdir()
        lives_elsewhere, silent_elsewhere, paused, killed = (study.ask() for _ in range(4))
        for trial in (lives_elsewhere, silent_elsewhere, paused):
            cast(BaseHeartbeat, shared.optuna).record_heartbeat(trial._trial_id)
        for trial in (silent_elsewhere, paused):
            old = "UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 hour' WHERE"
            server.run(f"{old} trial_id = {trial._trial_id}")
        with shared.running("s", killed.number):
            pass
        with open_storage(server.url(), tmp_path) as other, other.running("s", paused.number):
            lost = requeue_lost(other.study("s"), other)
        assert lost == [silent_elsewhere.number, killed.number]


def test_a_worker_killed_while_it_takes_a_trial_leaves_a_lost_trial(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_storage(server.url(), tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        shared.locks.mkdir()
        real_ask = study.ask

        def killed() -> None:
            real_ask()
            raise KeyboardInterrupt

        monkeypatch.setattr(study, "ask", killed)
        with pytest.raises(KeyboardInterrupt), ExitStack() as running:
            shared.ask(study, running)
        monkeypatch.undo()
        assert requeue_lost(study, shared) == [0]
        with ExitStack() as running:
            assert shared.ask(study, running).number == 1, "the retry"
            assert requeue_lost(study, shared) == []


def test_a_trial_that_another_machine_takes_first_is_not_locked_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_storage(tmp_path / "journal.log", tmp_path) as shared, ExitStack() as running:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        shared.locks.mkdir()
        real_ask = study.ask
        monkeypatch.setattr(study, "ask", lambda: [real_ask() for _ in range(2)][1])
        assert shared.ask(study, running).number == 1
        assert [path.name for path in shared.locks.iterdir()] == ["s-1"]


def test_a_database_that_comes_back_ends_no_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(storage_module, "AGAIN_S", (0.0, 0.0, 0.0))
    tries = list[int]()

    def work(n_failures: int) -> str:
        tries.append(1)
        if len(tries) <= n_failures:
            raise StorageLostError("storage: gone; the same command resumes")
        return "done"

    assert patiently(lambda: work(3)) == "done"
    note = "storage: gone; the same command resumes, and this one tries again in 0 s"
    assert caplog.messages == [note] * 3
    tries.clear()
    with pytest.raises(StorageLostError):
        patiently(lambda: work(4))
    tries.clear()
    with time_limit(0), pytest.raises(StorageLostError):
        patiently(lambda: work(1))


def test_a_trial_that_runs_elsewhere_for_long_is_counted_and_exits_with_1(
    tiny_tree: Path,
    searched: tuple[Path, TuneResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(tune_module, "GRACE_S", 0.2)
    monkeypatch.setattr(tune_module, "WAIT_S", 0.1)
    name = SPACE.study.name
    with open_storage(tmp_path / "journal.log", tmp_path / "out") as shared, ExitStack() as alive:
        shared.ask(shared.study(name), alive)
        counted = r"out: 3 of 4 trials have ended, and 1 run elsewhere; the same command resumes"
        with pytest.raises(PipelineError, match=counted):
            search(tiny_tree, tmp_path, trials=4)
        assert not is_done(tmp_path / "out")
    # Its worker has died now.
    result = search(tiny_tree, tmp_path, trials=4)
    assert [trial.state for trial in result.trials] == ["complete"] * 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_restart_and_two_killed_workers_of_three_cost_no_trial(
    server: Server, tiny_tree: Path, tmp_path: Path
) -> None:
    command = start(tiny_tree, tmp_path, trials=8, workers=3, storage=server.url())
    wait_for(tmp_path / "out" / "trials" / "2" / "fold-0", command)
    for pid in workers_of(command.pid)[:2]:
        os.kill(pid, signal.SIGKILL)
    wait_for(tmp_path / "out" / "trials" / "4" / "fold-0", command)
    server.control("restart", "-m", "fast")
    said = command.communicate()[1]
    assert command.returncode == 0, said
    trials = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert [trial["state"] for trial in trials] == ["complete"] * 8


def test_a_database_url_serves_as_storage(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    search(tiny_tree, tmp_path, trials=1, storage=url)
    result = search(tiny_tree, tmp_path, trials=2, storage=url)
    assert outcome(result) == outcome(searched[1])[:2]


def test_no_connection_is_open_between_two_calls(tmp_path: Path) -> None:
    from sqlalchemy import event
    from sqlalchemy.pool import Pool

    opened: list[object] = []
    closed: list[object] = []
    listeners = [("connect", lambda *a: opened.append(a)), ("close", lambda *a: closed.append(a))]
    for name, listener in listeners:
        event.listen(Pool, name, listener)
    try:
        with open_storage(f"sqlite:///{tmp_path / 'study.db'}", tmp_path) as shared:
            study = optuna.create_study(storage=shared.optuna, study_name="s")
            assert len(opened) == len(closed) > 0
            study.tell(study.ask(), 1.0)
            assert len(opened) == len(closed)
    finally:
        for name, listener in listeners:
            event.remove(Pool, name, listener)


@pytest.mark.slow
def test_of_two_machines_one_dies_and_the_other_does_its_trial(
    server: Server, tiny_tree: Path, tmp_path: Path
) -> None:
    from sqlalchemy import create_engine, text

    one, other, url = tmp_path / "one", tmp_path / "other", server.url()
    first = start(tiny_tree, one, trials=5, storage=url)
    wait_for(one / "out" / "trials" / "0" / "fold-0" / "config.toml", first)
    first.kill()
    first.communicate()
    with create_engine(url).begin() as connection:  # as if its last heartbeat were long ago
        old = "UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 hour'"
        assert connection.execute(text(old)).rowcount == 1
    second = start(tiny_tree, other, trials=5, workers=2, storage=url)
    said = second.communicate()[1]
    assert second.returncode == 0, said
    assert "trial 0 did not end; it is tried again" in said
    result = search(tiny_tree, other, trials=5, recipe=SLOW, storage=url)
    assert [trial.state for trial in result.trials] == ["complete"] * 5


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_lost_server_is_a_one_line_error(
    workers: int, server: Server, tiny_tree: Path, tmp_path: Path
) -> None:
    secret = f"{server.url()}&password=SECRET"
    search = start(tiny_tree, tmp_path, trials=40, storage=secret, workers=workers)
    wait_for(tmp_path / "out" / "trials" / "1" / "fold-0" / "config.toml", search)
    server.stop()
    said = search.communicate(timeout=180)[1]
    assert search.returncode == 1, said
    assert said.splitlines()[-1].endswith("; the same command resumes")
    assert "Traceback" not in said and "Error" not in said and "SECRET" not in said
