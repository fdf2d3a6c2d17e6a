"""Where Optuna keeps the trials of a search: a journal file on a disk, or a database.

Both serve many workers. A worker locks a file while it does a trial. A trial whose file is there
and free was left by a dead worker, and is queued again. A trial of another machine has no such file
here: then Optuna's heartbeats in the database decide.
"""

import logging
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock, Timeout

from common.errors import PipelineError
from common.files import locked
from common.http import chain
from common.progress import log, out_of_time

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalFileLock
    from optuna.trial import FrozenTrial
    from sqlalchemy.engine import URL, Engine

HEARTBEAT_S = 60  # three without one: the worker counts as dead
RETRIES = 2  # of a trial that may itself be what kills its workers
REPEATS = 30  # draws in a row of what has been tried: then hardly anything else is left
# What is noted of a trial. NUMBER is what users see: a retry has that of the lost one, and a draw
# of what trial n has tried has AGAIN = n in its place.
REASON, INTERRUPTED, NUMBER, AGAIN = "reason", "interrupted", "number", "again"
JOURNAL_START = b'{"op_code"'
TURN = 0x74756E65  # this project's number among PostgreSQL's advisory locks
MAX_TURN_S = 60  # a server ends the turn of a machine that is silent for so long
TURN_POLL_S = 0.2
CONNECT_WAITS_S = (1, 2, 4, 8, 16)
# Refusals of a server that another try may mend, as PostgreSQL words them.
BUSY = re.compile("too many|slots are reserved|starting up|shutting down|recovery mode")
FIRST_HEARTBEATS = """INSERT INTO trial_heartbeats (trial_id, heartbeat)
SELECT trial_id, CURRENT_TIMESTAMP FROM trials WHERE study_id = :study AND state = 'RUNNING'
AND NOT EXISTS (SELECT 1 FROM trial_heartbeats h WHERE h.trial_id = trials.trial_id)"""


@dataclass(frozen=True)
class SharedStorage:
    """A storage that several workers use at once, as one of them sees it.

    Attributes:
        turn: Keeps all other workers of a study from taking a trial while it is entered. Its value
            is a function that raises an error if the turn was lost.
        locks: Folder of the files that workers lock, one for each try of a trial.
        silent: Returns by a study's id the ids of running trials without a recent heartbeat; None
            if all workers see the folder of locks.
    """

    optuna: "BaseStorage"
    turn: Callable[[str], AbstractContextManager[Callable[[], Any]]]
    locks: Path
    silent: Callable[[int], list[int]] | None = None

    def running(self, study: str, trial: int) -> FileLock:
        """Return the lock that the worker of a trial holds."""
        return FileLock(self.locks / f"{study}-{trial}")

    def is_running_here(self, study: str, trial: int) -> bool:
        """Return True if a process that shares the folder of locks does the trial."""
        lock = self.running(study, trial)
        with suppress(Timeout), lock.acquire(timeout=0):
            return False
        return True

    def study(self, name: str, pruner: "BasePruner | None" = None) -> "Study":
        """Return a study that has been begun; raise PipelineError where there is none."""
        import optuna

        try:
            return optuna.load_study(study_name=name, storage=self.optuna, pruner=pruner)
        except KeyError:
            raise PipelineError(
                f"the storage holds no search of {name}; expected the one it began with"
            ) from None


@contextmanager
def open_storage(place: Path | str, out: Path) -> Iterator[SharedStorage]:
    """Open a storage for the block, in which Optuna keeps silent.

    Args:
        place: Path of a journal file, or a database URL such as postgresql+psycopg://host/name.
        out: Folder of the search; the locks are in it if the storage is a server.

    Raises:
        PipelineError: The storage cannot be opened, is damaged, or a database goes away.
    """
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    is_url = "://" in str(place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Heartbeat of storage is supposed")
            opened = _database(str(place), out) if is_url else nullcontext(_journal(Path(place)))
            with opened as shared:
                yield shared
    finally:
        optuna.logging.set_verbosity(level)


def _journal(path: Path) -> SharedStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    lock = FileLock(f"{path}.lock")

    class Journal(JournalFileBackend):
        """A journal that names itself and its damaged line, and leaves no half of a line."""

        line = 1

        def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
            self.line = log_number_from + 1
            try:
                for entry in super().read_logs(log_number_from):
                    yield entry
                    self.line += 1
            except ValueError as error:
                raise _damaged(path, self.line) from error

        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            with lock:
                n_bytes = path.stat().st_size
                try:
                    super().append_logs(logs)
                except OSError as error:
                    os.truncate(path, n_bytes)  # another worker's line would follow the half
                    error.filename = str(path)
                    raise

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock, path.open("ab+") as file:
            file.seek(0)
            content = file.read()
            starts = {line[: len(JOURNAL_START)] for line in content.split(b"\n")}
            if JOURNAL_START not in starts and not JOURNAL_START.startswith(content):
                raise PipelineError(f"{path}: not a tuning journal; choose another --storage")
            file.truncate(content.rfind(b"\n") + 1)  # a loss of power leaves half a line
        backend = Journal(str(path), lock_obj=cast("BaseJournalFileLock", lock))
        opened = JournalStorage(backend)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise _damaged(path, backend.line) from error
    if backend.line <= content.count(b"\n"):  # Optuna passes over a damaged last line
        raise _damaged(path, backend.line)
    return SharedStorage(
        opened, partial(_file_turn, f"{path}.turn"), path.with_name(f"{path.name}.running")
    )


def _damaged(path: Path, line: int) -> PipelineError:
    rest = "choose another --storage"
    if line > 1:
        kept = f"`head -n {line - 1} {path} > NEW.log`"
        rest = f"{kept} keeps the trials before: pass --storage NEW.log and another --out"
    return PipelineError(f"{path}: line {line} is damaged; expected what Optuna writes; {rest}")


@contextmanager
def _file_turn(path: str, study: str) -> Iterator[Callable[[], Any]]:
    with locked(Path(path)):
        yield lambda: None


@contextmanager
def _database(url: str, out: Path) -> Iterator[SharedStorage]:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy import create_engine, text
    from sqlalchemy.exc import (
        IntegrityError,
        InterfaceError,
        InternalError,
        OperationalError,
        SQLAlchemyError,
    )
    from sqlalchemy.pool import NullPool

    class PatientStorage(RDBStorage):
        """Its heartbeats may miss the database: the trial's own calls tell of it."""

        def record_heartbeat(self, trial_id: int) -> None:
            with suppress(SQLAlchemyError, StorageInternalError):
                super().record_heartbeat(trial_id)

        def _get_stale_trial_ids(self, study_id: int) -> list[int]:
            # A worker may have died before its first heartbeat: its time counts from now on.
            with suppress(IntegrityError), self.engine.begin() as connection:
                connection.execute(text(FIRST_HEARTBEATS), {"study": study_id})
            return cast(list[int], super()._get_stale_trial_ids(study_id))

    parts, where = _read_url(url)
    # It would log with a traceback that it cannot tidy up.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL + 1)
    is_file = parts.get_backend_name() == "sqlite"
    try:
        # Without a pool, workers hold no connection while they train.
        options = {"poolclass": NullPool, "creator": _connector(parts, where)}
        blank = f"{parts.drivername}://"  # Optuna would format a whole URL
        turn = partial(_server_turn, create_engine(blank, **options))
        if is_file:
            turn = partial(_file_turn, f"{parts.database}.turn")
        with turn(""):  # of workers that start together, one makes the tables
            beats_s = None if is_file else HEARTBEAT_S
            opened = PatientStorage(
                blank, options, heartbeat_interval=beats_s, grace_period=3 * HEARTBEAT_S
            )
    except (ImportError, SQLAlchemyError, StorageInternalError, RuntimeError, OSError) as error:
        is_missing = isinstance(error, ImportError) or "load plugin" in str(error)
        hint = "; expected postgresql+psycopg://…, after pip install 'psycopg[binary]'"
        told = _cause(error) + hint * is_missing
        raise PipelineError(f"{where}: cannot be opened: {told}") from error
    try:
        locks = Path(f"{parts.database}.running") if is_file else out / "running"
        yield SharedStorage(opened, turn, locks, None if is_file else opened._get_stale_trial_ids)
    except Exception as error:  # Optuna's own, over noting a failure, tells nothing
        faults = OperationalError | InterfaceError | InternalError
        lost = [e for e in chain(error) if isinstance(e, faults)]
        if not lost or isinstance(error, PipelineError):
            raise
        what = _cause(lost[0]) if is_file or BUSY.search(str(lost[0])) else "connection lost"
        raise PipelineError(f"{where}: {what}; the same command goes on") from error


def _read_url(url: str) -> "tuple[URL, str]":
    """Return a database URL, and how messages name it, without passwords."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        what = "storage: not a database URL; expected dialect://host/name"
        raise PipelineError(what) from None
    base, _, query = url.partition("?")
    shown = f"{parts.drivername}://***" if "@" in query else re.sub("://.*@", "://***@", base)
    where = f"storage {shown}"
    if parts.database in (None, "", ":memory:"):
        raise PipelineError(f"{where}: names no database; workers would share nothing")
    if parts.get_backend_name() != "sqlite" and "@" in f"{parts.host}{parts.database}":
        raise PipelineError(
            f"{where}: the password contains @; expected %40 for @ and %2F for /, or PGPASSWORD"
        )
    return parts, where


def _connector(parts: "URL", where: str) -> Callable[[], Any]:
    """Return what connects to a database, and waits for a server that is full or restarts."""
    dialect_type: Any = parts.get_dialect()
    dialect = dialect_type(dbapi=dialect_type.import_dbapi())
    words, options = dialect.create_connect_args(parts)
    is_known = False

    def connect() -> Any:
        nonlocal is_known
        for wait_s in (*CONNECT_WAITS_S, 0):
            try:
                connection: Any = dialect.connect(*words, **options)
                break
            except dialect.loaded_dbapi.Error as error:
                if not wait_s or out_of_time() or not (is_known or BUSY.search(str(error))):
                    is_known = False  # what follows need not wait as long again
                    raise
                log.info(f"{where}: {_cause(error)}; next try in {wait_s} s")
                time.sleep(wait_s)
        is_known = parts.get_backend_name() != "sqlite"
        if parts.get_backend_name() == "postgresql":
            # Heartbeats are compared as local times: machines of other zones must agree.
            connection.cursor().execute("SET TIME ZONE 'UTC'")
            connection.commit()
        return connection

    return connect


@contextmanager
def _server_turn(engine: "Engine", study: str) -> Iterator[Callable[[], Any]]:
    """Hold a lock of the study on a PostgreSQL server, which takes it from a machine that hangs."""
    from sqlalchemy import text
    from sqlalchemy.exc import DBAPIError

    limit = text(f"SET LOCAL idle_in_transaction_session_timeout = '{MAX_TURN_S}s'")
    lock = text(f"SELECT pg_try_advisory_xact_lock({TURN}, hashtext(:study))")
    while True:
        server = engine.connect()
        server.execute(limit)
        if server.scalar(lock, {"study": study}):
            break
        server.close()
        time.sleep(TURN_POLL_S)  # without a connection
    try:
        yield lambda: server.execute(text("SELECT 1"))
    finally:
        with suppress(DBAPIError):  # the lock was lost
            server.close()


def _cause(error: BaseException) -> str:
    own = next((one for one in chain(error) if getattr(one, "orig", None)), error)
    return " ".join(str(getattr(own, "orig", error)).split())


def requeue_lost(study: "Study", storage: SharedStorage) -> list[int]:
    """Fail the trials that dead workers left running, and queue lost ones again, in one's turn.

    A failed trial without a reason is a lost one. One that noted that it was interrupted is always
    tried again; one whose worker died without a word, perhaps of it, RETRIES times.
    """
    import optuna

    states, name = optuna.trial.TrialState, study.study_name
    silent = storage.silent(study._study_id) if storage.silent else []
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        is_elsewhere = storage.silent and not (storage.locks / f"{name}-{trial.number}").exists()
        is_alive = (
            trial._trial_id not in silent
            if is_elsewhere
            else storage.is_running_here(name, trial.number)
        )
        if not is_alive:
            study.tell(trial.number, state=states.FAIL, skip_if_finished=True)
    retry, requeued = optuna.storages.RetryHeartbeatStaleTrialCallback(), []
    for number, kept in numbered(study).items():
        if kept.state == states.FAIL and REASON not in kept.user_attrs:
            trial = deepcopy(kept)  # the retry extends a list of the trial's in place
            is_told = trial.user_attrs.pop(INTERRUPTED, False)
            if is_told or len(retry.retry_history(trial)) < RETRIES:
                retry(study, trial)
                requeued.append(number)
    return requeued


def numbered(study: "Study") -> "dict[int, FrozenTrial]":
    """Return trials by the numbers that users see, from 0 without a gap; of retries the last."""
    trials = study.get_trials(deepcopy=False)
    return {t.user_attrs[NUMBER]: t for t in trials if NUMBER in t.user_attrs}


def count_trials(study: "Study") -> int:
    """Count the trials that use up a budget: ended or running; a lost and retried one once."""
    return sum(trial.state.name != "WAITING" for trial in numbered(study).values())


def repeats_in_a_row(study: "Study") -> int:
    """Count the draws since the last trial; REPEATS of them: the space is searched."""
    last_first = reversed(study.get_trials(deepcopy=False))
    return len(list(takewhile(lambda trial: NUMBER not in trial.user_attrs, last_first)))
