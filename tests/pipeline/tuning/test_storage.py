"""Storages of searches: several workers, killed workers, databases."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import optuna
import pytest
import tomli_w
from filelock import FileLock
from optuna.storages._heartbeat import BaseHeartbeat
from sqlalchemy.exc import DBAPIError

from common.errors import PipelineError
from common.progress import heard_by
from common.settings import ROOT
from models.run_folder import is_done
from pipeline.tuning.result import TuneResult
from pipeline.tuning.storage import NUMBER, REASON, count_trials, open_storage, requeue_lost
from tests.drills.processes import workers_of
from tests.pipeline.tuning.conftest import Server
from tests.pipeline.tuning.small_study import SPACE, outcome, search, small_recipe

SLOW = small_recipe(**{"cross_config_sage.training.steps": 60})


def start(
    tiny_tree: Path, folder: Path, *, trials: int = 3, workers: int = 1, storage: str = ""
) -> "subprocess.Popen[str]":
    folder.mkdir(exist_ok=True)
    recipe, space = folder / "recipe.toml", folder / "space.toml"
    recipe.write_text(SLOW.to_toml())
    space.write_text(tomli_w.dumps(SPACE.decisive()))
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


def test_a_journal_with_a_half_written_line_goes_on_and_another_file_is_left_alone(
    tiny_tree: Path, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    shutil.copytree(searched[0], tmp_path, dirs_exist_ok=True)
    with (tmp_path / "journal.log").open("ab") as journal:
        journal.write(b'{"op_code":4,"wor')  # what a full disk leaves
    for _ in range(2):
        assert outcome(search(tiny_tree, tmp_path, trials=4))[:3] == outcome(searched[1])
    other = tmp_path / "notes.txt"
    other.write_text("no journal")
    with pytest.raises(PipelineError, match="not a tuning journal"), open_storage(other, tmp_path):
        pass
    assert other.read_text() == "no journal"


def test_a_trial_that_kills_its_workers_is_tried_twice_more_and_counts_once(tmp_path: Path) -> None:
    import optuna

    with open_storage(tmp_path / "journal.log", tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        study.enqueue_trial({"x": 1.0}, user_attrs={"own": True, NUMBER: 0})
        for number in range(3):  # no worker holds the trial's lock
            trial = study.ask()
            assert trial.number == number and trial.suggest_float("x", 0, 2) == 1.0
            assert trial.user_attrs == {"own": True, NUMBER: 0}
            assert requeue_lost(study, shared) == ([0] if number < 2 else [])
            assert requeue_lost(study, shared) == []
        study.ask()  # killed before it drew anything: it is no trial
        living = study.ask()
        living.set_user_attr(NUMBER, 1)
        with shared.running("s", living.number):
            assert requeue_lost(study, shared) == []
        living.set_user_attr(REASON, "too bad")
        study.tell(living, state=optuna.trial.TrialState.FAIL)
        assert requeue_lost(study, shared) == []
        assert [trial.state.name for trial in study.trials] == ["FAIL"] * 5
        assert count_trials(study) == 2


def damaged(lines: list[bytes], how: str) -> list[bytes]:
    """Damage the fifth line of a journal as crashes and disks do."""
    return {
        "zeros": [*lines[:4], bytes(200) + b"\n", *lines[4:]],
        "half": [*lines[:4], lines[4][:20], *lines[5:]],
        "no text": [*lines[:4], b"\xff\xfe\n", *lines[5:]],
        "no object": [*lines[:4], b"[1]\n", *lines[5:]],
        "no keys": [*lines[:4], b'{"op_code":4,"worker_id":"x"}\n', *lines[5:]],
        "empty": [*lines[:4], b"\n", *lines[5:]],
        "end": [*lines[:4], lines[4][:20] + b"\n"],
    }[how]


@pytest.mark.parametrize(
    "how", ["zeros", "half", "no text", "no object", "no keys", "empty", "end"]
)
def test_a_damaged_journal_names_its_line_and_what_can_still_be_read(
    how: str, searched: tuple[Path, TuneResult], tmp_path: Path
) -> None:
    path = tmp_path / "journal.log"
    lines = (searched[0] / "journal.log").read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(damaged(lines, how)))
    before = path.read_bytes()
    with pytest.raises(PipelineError) as caught, open_storage(path, tmp_path):
        pass
    assert str(caught.value) == (
        f"{path}: line 5 is damaged; expected what Optuna writes; `head -n 4 {path} > NEW.log` "
        "keeps the trials before: pass --storage NEW.log and another --out"
    )
    assert path.read_bytes() == before
    path.write_bytes(b"".join(before.splitlines(keepends=True)[:4]))
    with open_storage(path, tmp_path) as shared:
        assert shared.study(SPACE.study.name)


def test_a_journal_whose_first_line_is_damaged_is_no_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    with open_storage(path, tmp_path) as shared:
        optuna.create_study(storage=shared.optuna)
    path.write_bytes(bytes(99) + b"\n" + path.read_bytes())
    told = "line 1 is damaged; expected what Optuna writes; choose another --storage"
    with pytest.raises(PipelineError, match=told), open_storage(path, tmp_path):
        pass


def test_a_full_disk_names_the_journal_and_leaves_no_half_of_a_line(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "journal.log"
    with open_storage(path, tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna)
        before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
            with pytest.raises(OSError, match="too large") as caught:
                study.set_user_attr("x", 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert caught.value.filename == str(path) and path.read_bytes() == before
        study.set_user_attr("x", 2)
        assert study.user_attrs == {"x": 2}


def test_trials_begun_here_are_judged_by_locks_and_others_by_heartbeats(tmp_path: Path) -> None:
    url, fail = f"sqlite:///{tmp_path / 'study.db'}", optuna.trial.TrialState.FAIL
    silent = list[int]()
    with open_storage(url, tmp_path) as file:
        # As a server: its heartbeats say that such trials are silent.
        shared = replace(file, locks=tmp_path / "running", silent=lambda study_id: silent)
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        trials = [study.ask() for _ in range(4)]
        for trial in trials:
            trial.set_user_attr(NUMBER, trial.number)
        _, silent_elsewhere, paused, killed = trials
        silent += [silent_elsewhere._trial_id, paused._trial_id]
        with shared.running("s", killed.number):
            pass
        with shared.running("s", paused.number):
            assert requeue_lost(study, shared) == [silent_elsewhere.number, killed.number]
        states = [trial.state for trial in study.trials[:4]]
        assert [state == fail for state in states] == [False, True, False, True]


def test_a_turn_that_another_process_holds_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.files.SILENT_S", 0.01)
    told, path = list[str](), tmp_path / "journal.log"
    with open_storage(path, tmp_path) as shared, FileLock(f"{path}.turn") as lock:

        def hear(line: str) -> None:
            told.append(line)
            lock.release()

        with heard_by(hear), shared.turn("s"):
            assert "another process works in it" in told[0] and f"lock {path}.turn" in told[0]


@pytest.mark.slow
def test_a_command_killed_in_mid_trial_goes_on_where_it_was(
    tiny_tree: Path, tmp_path: Path
) -> None:
    command = start(tiny_tree, tmp_path)
    done = tmp_path / "out" / "trials" / "1" / "fold-0" / "DONE"
    wait_for(done, command)
    command.kill()
    command.communicate()
    result = search(tiny_tree, tmp_path, trials=3, recipe=SLOW)
    assert {path.name for path in (tmp_path / "out" / "trials").iterdir()} == {"0", "1", "2"}
    undisturbed = search(tiny_tree, tmp_path / "undisturbed", trials=3, recipe=SLOW)
    assert outcome(result) == outcome(undisturbed)


@pytest.mark.slow
def test_two_commands_and_four_workers_share_one_budget(tiny_tree: Path, tmp_path: Path) -> None:
    one = start(tiny_tree, tmp_path, trials=9, workers=2)
    wait_for(tmp_path / "out" / "trials" / "0" / "fold-0", one)
    other = start(tiny_tree, tmp_path, trials=9, workers=2)
    wait_for(tmp_path / "out" / "trials" / "4" / "fold-0", one)
    os.kill(workers_of(one.pid)[0], signal.SIGKILL)
    said = one.communicate()[1] + other.communicate()[1]
    assert (one.returncode, other.returncode) == (0, 0), said
    assert "its worker was killed by SIGKILL (out of memory?); it goes on elsewhere" in said
    result = search(tiny_tree, tmp_path, trials=9, recipe=SLOW)
    assert [trial.state for trial in result.trials] == ["complete"] * 9
    assert is_done(tmp_path / "out")


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
        (
            "postgresql+psycopg2://me:secret@host/db?sslpassword=secret",
            r"//\*\*\*@host/db: cannot",
        ),
        ("sqlite://", "names no database"),
        ("a://b:c:d/", "not a database URL"),
        ("postgres://me:secret@host/db", r"//\*\*\*@host/db: .*; expected postgresql\+psycopg://"),
        ("postgresql+psycopg://me:x@secret@host/db", r"//\*\*\*@host/db: .* %40 for @"),
        ("postgresql+psycopg://me:x@secret/y@host/db", r"//\*\*\*@host/db: .* %40 for @"),
        ("postgresql+psycopg://me:a/secret@b@host/db", r"//\*\*\*@host/db: .* %40 for @"),
        ("postgresql+psycopg://host/?password=x@secret?y", r"psycopg://\*\*\*: names no database"),
        ("postgresql+psycopg2://me:{secret}@host/db", r"//\*\*\*@host/db: cannot"),
    ],
)
def test_a_database_out_of_reach_is_one_line_without_password(
    url: str, message: str, tiny_tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        search(tiny_tree, tmp_path, trials=1, storage=url)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists(), "the corrected command is not refused"


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
    assert "trial 0 did not come to its end; it is tried again" in said
    result = search(tiny_tree, other, trials=5, recipe=SLOW, storage=url)
    assert [trial.state for trial in result.trials] == ["complete"] * 5


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_goes_away_is_told_in_one_line(
    workers: int, server: Server, tiny_tree: Path, tmp_path: Path
) -> None:
    secret = f"{server.url()}&password=SECRET"
    search = start(tiny_tree, tmp_path, trials=40, storage=secret, workers=workers)
    wait_for(tmp_path / "out" / "trials" / "1" / "fold-0" / "config.toml", search)
    server.stop()
    said = search.communicate(timeout=180)[1]
    assert search.returncode == 1, said
    assert "connection lost; the same command goes on" in said.splitlines()[-1]
    assert "Traceback" not in said and "Error" not in said and "SECRET" not in said


def test_a_machine_that_hangs_loses_its_turn_and_other_searches_do_not_wait(
    shared_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.tuning.storage.MAX_TURN_S", 1)
    url = shared_server.url(database=database)
    with open_storage(url, tmp_path) as hangs, open_storage(url, tmp_path) as lives:
        with hangs.turn("s") as check, lives.turn("other"):
            check()
            with lives.turn("s") as check_other:
                check_other()
            with pytest.raises(DBAPIError, match="idle-in-transaction"):
                check()
        with lives.turn("s") as check_again:
            check_again()


def test_no_connection_is_held_and_one_is_waited_for(
    shared_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from psycopg import connect

    role = database
    shared_server.run(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 3")
    shared_server.run(f"GRANT ALL ON SCHEMA public TO {role}", database=database)
    url, told, taken = shared_server.url(role, database), list[str](), list[Any]()
    monkeypatch.setattr("pipeline.tuning.storage.CONNECT_WAITS_S", (0.01,))

    def hear(line: str) -> None:
        told.append(line)
        taken.pop().close()

    name = f"host={shared_server.folder} user={role} dbname={database}"
    with open_storage(url, tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        taken += [connect(name) for _ in range(3)]  # so all are free
        with heard_by(hear):
            study.set_user_attr("x", 1)
        assert len(told) == 1 and "too many connections" in told[0]
    taken.append(connect(name))
    with pytest.raises(PipelineError, match="too many connections"), open_storage(url, tmp_path):
        pass
    for connection in taken:
        connection.close()


def test_clocks_of_other_zones_do_not_fail_trials(
    shared_server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_server.url(database=database)
    monkeypatch.setenv("PGTZ", "Pacific/Honolulu")
    with open_storage(url, tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        trial = study.ask()
        cast(BaseHeartbeat, shared.optuna).record_heartbeat(trial._trial_id)
    monkeypatch.setenv("PGTZ", "Pacific/Auckland")
    with open_storage(url, tmp_path) as shared:
        assert requeue_lost(shared.study("s"), shared) == []
        assert shared.study("s").trials[0].state.name == "RUNNING"


def test_a_trial_whose_worker_died_before_its_first_heartbeat_ends(
    shared_server: Server, database: str, tmp_path: Path
) -> None:
    old = "UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 hour'"
    with open_storage(shared_server.url(database=database), tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        study.ask().set_user_attr(NUMBER, 0)
        assert requeue_lost(study, shared) == []
        shared_server.run(old, database=database)
        assert requeue_lost(study, shared) == [0]


def test_a_restart_of_the_server_ends_nobody(server: Server, tmp_path: Path) -> None:
    with open_storage(server.url(), tmp_path) as shared:
        study = optuna.create_study(storage=shared.optuna, study_name="s")
        server.restart()
        study.set_user_attr("x", 1)
        with shared.turn("s") as check:
            check()
        assert study.user_attrs == {"x": 1}


@pytest.mark.slow
@pytest.mark.parametrize("shares_folder", [True, False])
def test_a_worker_that_was_paused_for_long_fails_no_trial(
    shares_folder: bool, server: Server, tiny_tree: Path, tmp_path: Path
) -> None:
    one, url = tmp_path / "one", server.url()
    other = one if shares_folder else tmp_path / "other"
    first = start(tiny_tree, one, trials=2, storage=url)
    wait_for(one / "out" / "trials" / "0" / "fold-0" / "config.toml", first)
    first.send_signal(signal.SIGSTOP)
    server.run("UPDATE trial_heartbeats SET heartbeat = heartbeat - interval '1 hour'")
    second = start(tiny_tree, other, trials=2, storage=url)
    said = second.communicate()[1]
    first.send_signal(signal.SIGCONT)
    said_first = first.communicate()[1]
    assert (first.returncode, second.returncode) == (0, 0), said + said_first
    took = "trial 0: this worker was silent for long, and another one took over"
    assert (took in said_first) != shares_folder
    result = search(tiny_tree, other, trials=2, recipe=SLOW, storage=url)
    assert [trial.state for trial in result.trials] == ["complete"] * 2


@pytest.mark.slow
def test_the_last_trial_of_a_killed_worker_is_done_by_the_same_command(
    server: Server, tiny_tree: Path, tmp_path: Path
) -> None:
    command = start(tiny_tree, tmp_path, trials=2, workers=2, storage=server.url())
    for number in "01":
        wait_for(tmp_path / "out" / "trials" / number / "fold-0" / "config.toml", command)
    os.kill(workers_of(command.pid)[0], signal.SIGKILL)
    said = command.communicate()[1]
    assert command.returncode == 0, said
    assert "did not come to its end; it is tried again" in said
    assert is_done(tmp_path / "out"), said
