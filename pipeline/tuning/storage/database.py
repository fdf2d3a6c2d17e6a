"""A database that workers on many machines share: who lives, and who takes the next trial.

Each worker says every minute that it lives; the trials of those that fall silent are lost. The
environment variables PIPELINE_TUNE_HEARTBEAT_S and PIPELINE_TUNE_SILENT_S change how often and for
how long, in whole seconds; all workers of a database need the same.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import PipelineError, UsageError
from pipeline.tuning.storage.journal import claims_of

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

HEARTBEAT_S, SILENT_S = 60, 180
CLAIMS = 0x74756E65  # this project's number among PostgreSQL's advisory locks
TAKE_CLAIMS = f"SELECT pg_advisory_lock({CLAIMS})"
DIALECTS = ("postgresql", "sqlite")


def database_storage(url: str) -> "BaseStorage":
    """Open a database.

    Raises:
        PipelineError: not a URL of a database that is known here, its driver is not installed, or
            it cannot be reached.
        UsageError: seconds in the environment that are no whole numbers.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        parts = make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise PipelineError("storage: not a database URL; expected dialect://host/name") from error
    shown = without_password(url)
    if parts.get_backend_name() not in DIALECTS:
        raise PipelineError(f"storage {shown}: expected postgresql://…, sqlite:///… or a file")
    if parts.database in (None, "", ":memory:"):
        raise PipelineError(f"storage {shown}: names no database; workers would share nothing")
    seconds = _seconds("PIPELINE_TUNE_HEARTBEAT_S", HEARTBEAT_S)
    silent = _seconds("PIPELINE_TUNE_SILENT_S", SILENT_S)
    try:
        with database_claims(url):  # of workers that start together, one makes the tables
            return _patient_storage(url, seconds, silent)
    except ImportError as error:
        raise PipelineError(
            f"storage {shown}: its database driver is not installed; for PostgreSQL: pip install "
            "'psycopg[binary]'"
        ) from error
    except (SQLAlchemyError, RuntimeError, OSError) as error:
        raise PipelineError(f"storage {shown}: cannot be opened: {_cause(error)}") from error


def without_password(url: str) -> str:
    """Return a database URL as it may be shown: its password, wherever it stands, as ***."""
    from sqlalchemy.engine import make_url

    parts = make_url(url)
    query = {k: "***" if "password" in k.lower() else v for k, v in parts.query.items()}
    return parts.set(query=query).render_as_string(hide_password=True).replace("%2A", "*")


def _patient_storage(url: str, heartbeat_s: int, silent_s: int) -> "BaseStorage":
    """Open a storage whose heartbeats may miss the database: the trial's own calls tell of it."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    class PatientStorage(optuna.storages.RDBStorage):
        def record_heartbeat(self, trial_id: int) -> None:
            with suppress(SQLAlchemyError, optuna.exceptions.StorageInternalError):
                super().record_heartbeat(trial_id)

    return PatientStorage(url, heartbeat_interval=heartbeat_s, grace_period=silent_s)


@contextmanager
def connected(url: str) -> Iterator[None]:
    """Say in one line that the database went away while the block ran.

    Raises:
        PipelineError: it did.
    """
    pool = logging.getLogger("sqlalchemy.pool")
    level = pool.level
    pool.setLevel(logging.CRITICAL + 1)  # it logs with a traceback that it cannot tidy up
    try:
        yield
    except Exception as error:
        lost = _lost_connection(error)
        if lost is None:
            raise
        where = f"storage {without_password(url)}"
        what = "connection lost" if url.startswith("postgresql") else _cause(lost)
        raise PipelineError(f"{where}: {what}; the same command goes on") from error
    finally:
        pool.setLevel(level)


def _lost_connection(error: BaseException | None) -> BaseException | None:
    """Return the database's own error among those that led to this one, if there is one.

    Optuna fails over noting a trial's failure, and raises an error that tells nothing.
    """
    from sqlalchemy.exc import InterfaceError, OperationalError

    while error is not None:
        if isinstance(error, OperationalError | InterfaceError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _cause(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())


@contextmanager
def database_claims(url: str) -> Iterator[None]:
    """Wait until no other worker of the database is taking a trial, and keep others from it.

    A PostgreSQL server drops the lock with the connection, when a worker is killed too. SQLite is a
    file on one machine, and so is its lock.
    """
    from sqlalchemy import create_engine, text
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import NullPool

    parts = make_url(url)
    if parts.get_backend_name() == "sqlite":
        with claims_of(Path(parts.database or "memory")):
            yield
        return
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(TAKE_CLAIMS))
        yield


def wait_for_heartbeat(storage: "BaseStorage", trial_id: int) -> None:
    """Wait until Optuna's thread has noted that a trial's worker lives; no time at all, usually.

    A trial of which nothing is noted is never found to be silent. (Noting it here as well would get
    into the thread's way, and end it.)

    Raises:
        PipelineError: nothing is noted.
    """
    from sqlalchemy import text

    query = text(f"SELECT 1 FROM trial_heartbeats WHERE trial_id = {int(trial_id)}")  # noqa: S608
    deadline = time.monotonic() + HEARTBEAT_S
    while time.monotonic() < deadline:
        with storage.engine.connect() as connection:
            if connection.execute(query).first():
                return
        time.sleep(0.01)
    raise PipelineError("storage: takes no heartbeats; is the database read-only or overloaded?")


def _seconds(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{variable} = {text!r}: expected whole seconds, 1 or more")
    return int(text)
