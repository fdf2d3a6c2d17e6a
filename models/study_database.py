"""A database that workers on many machines share: who lives, and who takes the next trial.

Each worker says every minute that it lives; the trials of those that fall silent are lost. The
environment variables PIPELINE_TUNE_HEARTBEAT_S and PIPELINE_TUNE_SILENT_S change how often and for
how long, in whole seconds; all workers of a database need the same.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from data.errors import PipelineError, UsageError
from models.journal import claims_of

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
    import optuna
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        parts = make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise PipelineError("storage: not a database URL; expected dialect://host/name") from error
    shown = parts.render_as_string(hide_password=True)
    if parts.get_backend_name() not in DIALECTS:
        raise PipelineError(f"storage {shown}: expected postgresql://…, sqlite:///… or a file")
    if parts.database in (None, "", ":memory:"):
        raise PipelineError(f"storage {shown}: names no database; workers would share nothing")
    seconds = _seconds("PIPELINE_TUNE_HEARTBEAT_S", HEARTBEAT_S)
    silent = _seconds("PIPELINE_TUNE_SILENT_S", SILENT_S)
    try:
        with database_claims(url):  # of workers that start together, one makes the tables
            return optuna.storages.RDBStorage(url, heartbeat_interval=seconds, grace_period=silent)
    except ImportError as error:
        raise PipelineError(
            f"storage {shown}: its database driver is not installed; for PostgreSQL: pip install "
            "'psycopg[binary]'"
        ) from error
    except (SQLAlchemyError, RuntimeError, OSError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        raise PipelineError(f"storage {shown}: cannot be opened: {cause}") from error


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
