"""Where Optuna keeps the trials of a search: a journal file on a disk, or a database.

Both serve many workers. A trial whose worker died is found out by the lock that it held beside a
journal, or by Optuna's heartbeats in a database, and queued again.
"""

import logging
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
from common.retry import chain

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalFileLock
    from optuna.trial import FrozenTrial

HEARTBEAT_S = 60  # three without one: the worker counts as dead
RETRIES = 2  # of a trial that may itself be what kills its workers
REPEATS = 30  # draws in a row of what has been tried: then hardly anything else is left
# What is noted of a trial. NUMBER is what users see: a retry has that of the lost one, and a draw
# of what trial n has tried has AGAIN = n in its place.
REASON, INTERRUPTED, NUMBER, AGAIN = "reason", "interrupted", "number", "again"
JOURNAL_START = b'{"op_code"'
TURN = 0x74756E65  # this project's number among PostgreSQL's advisory locks


@dataclass(frozen=True)
class SharedStorage:
    """A storage that several workers use at once, as one of them sees it.

    Attributes:
        turn: keeps all other workers from taking a trial while it is entered.
        running: the lock that the worker of a trial holds, by study and trial; None where
            heartbeats tell who lives.
    """

    optuna: "BaseStorage"
    turn: Callable[[], AbstractContextManager[Any]]
    running: Callable[[str, int], FileLock] | None = None

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
def open_storage(place: Path | str) -> Iterator[SharedStorage]:
    """Open a storage for the block, in which Optuna keeps silent.

    Args:
        place: a journal file's path, or a database URL such as postgresql://user@host/name.

    Raises:
        PipelineError: the storage cannot be opened, or a database goes away.
    """
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    is_url = "://" in str(place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            with _database(str(place)) if is_url else nullcontext(_journal(Path(place))) as shared:
                yield shared
    finally:
        optuna.logging.set_verbosity(level)


def _journal(path: Path) -> SharedStorage:
    import optuna

    lock, running = FileLock(f"{path}.lock"), path.with_name(f"{path.name}.running")
    refusal = f"{path}: not a tuning journal; choose another --storage"
    try:
        running.mkdir(parents=True, exist_ok=True)
        with lock, path.open("ab+") as file:
            file.seek(0)
            content = file.read()
            if content[: len(JOURNAL_START)] != JOURNAL_START[: len(content)]:
                raise PipelineError(refusal)
            file.truncate(content.rfind(b"\n") + 1)  # a full disk leaves half a line
        backend = optuna.storages.journal.JournalFileBackend(
            str(path), lock_obj=cast("BaseJournalFileLock", lock)
        )
        opened = optuna.storages.JournalStorage(backend)
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(refusal) from error
    return SharedStorage(
        opened,
        turn=lambda: FileLock(f"{path}.turn"),
        running=lambda study, trial: FileLock(running / f"{study}-{trial}"),
    )


@contextmanager
def _database(url: str) -> Iterator[SharedStorage]:
    import optuna
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError, SQLAlchemyError

    class PatientStorage(optuna.storages.RDBStorage):
        """Its heartbeats may miss the database: the trial's own calls tell of it."""

        def record_heartbeat(self, trial_id: int) -> None:
            with suppress(SQLAlchemyError, optuna.exceptions.StorageInternalError):
                super().record_heartbeat(trial_id)

    try:
        parts = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise PipelineError("storage: not a database URL; expected dialect://host/name") from error
    # It would log with a traceback that it cannot tidy up.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL + 1)
    where = f"storage {parts.set(query={}).render_as_string()}"  # without passwords
    if parts.database in (None, "", ":memory:"):
        raise PipelineError(f"{where}: names no database; workers would share nothing")
    is_file = parts.get_backend_name() == "sqlite"
    turn = partial(FileLock, f"{parts.database}.turn") if is_file else partial(_server_turn, url)
    try:
        with turn():  # of workers that start together, one makes the tables
            opened = PatientStorage(
                url, heartbeat_interval=HEARTBEAT_S, grace_period=3 * HEARTBEAT_S
            )
    except (ImportError, SQLAlchemyError, RuntimeError, OSError) as error:
        is_missing = isinstance(error, ImportError)
        hint = "; for PostgreSQL: pip install 'psycopg[binary]'" * is_missing
        raise PipelineError(f"{where}: cannot be opened: {_cause(error)}{hint}") from error
    try:
        yield SharedStorage(opened, turn)
    except Exception as error:  # Optuna's own, over noting a failure, tells nothing
        lost = [e for e in chain(error) if isinstance(e, OperationalError | InterfaceError)]
        if not lost or isinstance(error, PipelineError):
            raise
        what = _cause(lost[0]) if is_file else "connection lost"
        raise PipelineError(f"{where}: {what}; the same command goes on") from error


@contextmanager
def _server_turn(url: str) -> Iterator[None]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.pool import NullPool

    with create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT").connect() as server:
        server.execute(text(f"SELECT pg_advisory_lock({TURN})"))
        yield


def _cause(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())


def requeue_lost(study: "Study", storage: SharedStorage) -> list[int]:
    """Fail the trials that dead workers left running, and queue lost ones again, in one's turn.

    A failed trial without a reason is a lost one. One that noted that it was interrupted is always
    tried again; one whose worker died without a word, perhaps of it, RETRIES times.
    """
    import optuna

    states = optuna.trial.TrialState
    optuna.storages.fail_stale_trials(study)  # as heartbeats tell
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        if storage.running:
            lock = storage.running(study.study_name, trial.number)
            with suppress(Timeout), lock.acquire(timeout=0):
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
