"""A study in PostgreSQL: workers that share nothing but the server, one killed in mid-trial."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from data.errors import UsageError
from models.study_database import database_claims, database_storage
from tests.models.light_workers import check_workers_share_a_budget
from tests.models.postgres import postgres
from tests.models.small_study import search
from tests.models.test_study_storage import SLOW, start, wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.mark.slow
def test_workers_of_a_server_run_the_budget_and_not_one_trial_more(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_workers_share_a_budget(server, tmp_path, monkeypatch)


@pytest.mark.slow
def test_of_two_machines_one_dies_and_the_other_does_its_trial(
    server: str, tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_TUNE_HEARTBEAT_S", "1")
    monkeypatch.setenv("PIPELINE_TUNE_SILENT_S", "3")
    one, other = tmp_path / "one", tmp_path / "other"
    for machine in (one, other):
        machine.mkdir()
    first = start(tiny_tree, one, trials=5, storage=server)
    wait_for(one / "out" / "trials" / "0" / "fold-0" / "config.toml", first)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = start(tiny_tree, other, trials=5, storage=server)
    said = second.communicate()[1]
    assert second.returncode == 0, said
    assert "trial 0 was lost with its worker; it is tried again" in said
    result = search(tiny_tree, other, trials=5, table=SLOW, storage=server)
    states = [trial.state for trial in result.trials]
    assert states == ["fail", *["complete"] * 5]
    assert sum(trial.is_baseline for trial in result.trials) == 2  # the lost one, and its retry
    assert not (one / "out" / "trials" / "1").exists()


def test_sqlite_claims_are_taken_one_at_a_time(tmp_path: Path) -> None:
    import fcntl

    url = f"sqlite:///{tmp_path / 'study.db'}"
    with (
        database_claims(url),
        (tmp_path / "study.db.claims").open("ab") as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_seconds_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_TUNE_SILENT_S", "soon")
    with pytest.raises(UsageError, match="PIPELINE_TUNE_SILENT_S = 'soon': expected whole seconds"):
        database_storage(f"sqlite:///{tmp_path / 'study.db'}")
