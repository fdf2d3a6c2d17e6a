"""A study in PostgreSQL: workers that share nothing but the server, one killed in mid-trial."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from pipeline.tuning.storage.database import (
    connected,
    database_claims,
    database_storage,
    without_password,
)
from tests.models.light_workers import check_workers_share_a_budget
from tests.models.postgres import postgres, postgres_server
from tests.models.small_study import search
from tests.pipeline.tuning.storage.test_storage import SLOW, start, wait_for


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


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_goes_away_is_one_line(
    workers: int, tiny_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_TUNE_HEARTBEAT_S", "1")
    with postgres_server() as (url, server):
        secret = f"{url}&password=SECRET"
        search = start(tiny_tree, tmp_path, trials=40, storage=secret, workers=workers)
        wait_for(tmp_path / "out" / "trials" / "1" / "fold-0" / "config.toml", search)
        server.send_signal(signal.SIGQUIT)  # as killed, without what clients are told
        said = search.communicate(timeout=60)[1]
        server.wait()
    assert search.returncode == 1, said
    told = [line for line in said.splitlines() if "connection lost; the same command goes" in line]
    assert told, said
    assert said.count("Traceback") == 0 and "Error" not in said and "SECRET" not in said
    assert len(told) == 1


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:SECRET@host/db", "postgresql://me:***@host/db"),
        (
            "postgresql+psycopg://me@/db?host=%2Ftmp&password=SECRET&sslpassword=SECRET",
            "postgresql+psycopg://me@/db?host=%2Ftmp&password=***&sslpassword=***",
        ),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_lost_connection_is_told_from_other_errors(tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    url = f"sqlite:///{tmp_path / 'study.db'}"
    with (
        pytest.raises(PipelineError, match=r"no such table: t; the same command goes on"),
        connected(url),
        create_engine(url).connect() as connection,
    ):
        try:
            connection.execute(text("SELECT 1 FROM t"))
        finally:
            raise UnboundLocalError  # as Optuna does over noting it
    with pytest.raises(ZeroDivisionError), connected(url):
        1 / 0  # noqa: B018


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
