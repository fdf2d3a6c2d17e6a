"""The storage of Optuna's trials: a journal file on a disk, or a database.

Several workers may use it at once. A worker locks a file while it does a trial. If the file of a
running trial is not locked, its worker is dead, and the trial is queued again. A trial of another
machine has no such file, so Optuna's heartbeats in the database decide.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from filelock import FileLock, Timeout

from common.errors import PipelineError
from common.files import locked, unwritable
from common.progress import log, out_of_time

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalFileLock
    from optuna.trial import FrozenTrial, Trial
    from sqlalchemy.engine import URL

# After three times this interval without a heartbeat a worker counts as dead.
HEARTBEAT_S = 60
GRACE_S = 3 * HEARTBEAT_S
# A database that goes away is tried again after these pauses, because it may just restart.
AGAIN_S = (10.0, 20.0, 30.0)
# Retries of a trial whose worker died without a note.
RETRIES = 2
# Attributes of a trial.
REASON, INTERRUPTED = "reason", "interrupted"
JOURNAL_START = b'{"op_code"'
T = TypeVar("T")


class StorageLostError(PipelineError):
    """The database does not answer, or has ended the connection."""


def patiently(work: Callable[[], T]) -> T:
    """Do work that opens a storage, and do it again if the database goes away meanwhile."""
    for pause_s in AGAIN_S:
        try:
            return work()
        except StorageLostError as error:
            if out_of_time():
                raise
            log.info(f"{error}, and this one tries again in {pause_s:.0f} s")
            time.sleep(pause_s)
    return work()


@dataclass(frozen=True)
class SharedStorage:
    """A storage that several workers use at once.

    Attributes:
        has_heartbeats: Whether workers may be on machines that do not see the folder of locks.
    """

    optuna: "BaseStorage"
    locks: Path
    has_heartbeats: bool = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Lock the folder of locks, so that no other worker takes a trial in the block."""
        self.locks.mkdir(parents=True, exist_ok=True)
        with locked(self.locks / "turn"):
            yield

    def running(self, study: str, trial: int) -> FileLock:
        """Return the lock of a trial. Its worker locks it while the trial runs."""
        return FileLock(self.locks / f"{study}-{trial}")

    def ask(self, study: "Study", running: ExitStack) -> "Trial":
        """Take the next trial in the block of `turn`, and lock it until `running` ends.

        A killed worker must leave a lock, so the trial that Optuna takes next is locked before.
        """
        trials = study.get_trials(deepcopy=False)
        waiting = (trial.number for trial in trials if trial.state.name == "WAITING")
        number = next(waiting, len(trials))
        lock = running.enter_context(self.running(study.study_name, number))
        trial = study.ask()
        if trial.number != number:
            # A worker on another machine was faster, and its trial must not look like a lost one.
            Path(lock.lock_file).unlink(missing_ok=True)
            running.enter_context(self.running(study.study_name, trial.number))
        return trial

    def is_lost(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Return whether the worker of a running trial is dead."""
        lock = self.running(study.study_name, trial.number)
        if self.has_heartbeats and not Path(lock.lock_file).exists():
            silent = cast(Any, self.optuna)._get_stale_trial_ids(study._study_id)
            return trial._trial_id in silent
        with suppress(Timeout), lock.acquire(timeout=0):
            return True
        return False

    def study(self, name: str) -> "Study":
        """Return an existing study."""
        import optuna

        try:
            return optuna.load_study(study_name=name, storage=self.optuna)
        except KeyError:
            raise PipelineError(
                f"the storage has no search of {name}; expected the one it began with"
            ) from None


@contextmanager
def open_storage(place: Path | str, out: Path) -> Iterator[SharedStorage]:
    """Open a storage for the block. Optuna logs only errors in the block.

    Args:
        place: Path of a journal file, or a database URL, for example
            postgresql+psycopg://host/name.
        out: Folder of the search. It has the locks if the storage is a server.
    """
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Heartbeat of storage is supposed")
            if "://" in str(place):
                with _database(str(place), out) as database:
                    yield database
            else:
                yield _journal(Path(place))
    finally:
        optuna.logging.set_verbosity(level)


def _journal(path: Path) -> SharedStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    lock = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock, path.open("ab+") as file:
            file.seek(0)
            content = file.read()
            if not (content.startswith(JOURNAL_START) or JOURNAL_START.startswith(content)):
                raise PipelineError(f"{path}: not a tuning journal; choose another --storage")
            # A full disk or a loss of power leaves half a line.
            file.truncate(content.rfind(b"\n") + 1)
        backend = JournalFileBackend(str(path), lock_obj=cast("BaseJournalFileLock", lock))
        return SharedStorage(JournalStorage(backend), path.with_name(f"{path.name}.running"))
    except OSError as error:
        raise unwritable(path, error) from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        reason = "is damaged; expected a journal of Optuna"
        raise PipelineError(f"{path}: {reason}; choose another --storage and --out") from error


def _checked_url(url: str) -> "URL":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        raise PipelineError("storage: not a database URL; expected dialect://host/name") from None
    if parts.get_backend_name() != "sqlite" and "@" in f"{parts.host}{parts.database}":
        fault = "a second @, so that a part of the password is read as the host"
        raise PipelineError(f"storage: its URL has {fault}; write an @ of the password as %40")
    if parts.database in (None, "", ":memory:"):
        where = f"storage {parts.set(query={}).render_as_string()}"
        raise PipelineError(f"{where}: names no database; workers would share nothing")
    return parts


@contextmanager
def _database(url: str, out: Path) -> Iterator[SharedStorage]:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    class PatientStorage(RDBStorage):
        # A heartbeat may fail: the next call of the trial itself reports the fault.
        def record_heartbeat(self, trial_id: int) -> None:
            with suppress(SQLAlchemyError, StorageInternalError):
                super().record_heartbeat(trial_id)

    parts = _checked_url(url)
    where = f"storage {parts.set(query={}).render_as_string()}"
    is_file = parts.get_backend_name() == "sqlite"
    locks = Path(f"{parts.database}.running") if is_file else out / "running"
    try:
        storage = PatientStorage(
            url,
            # Workers have no open connection while they train.
            {"poolclass": NullPool},
            heartbeat_interval=None if is_file else HEARTBEAT_S,
            grace_period=GRACE_S,
        )
        yield SharedStorage(storage, locks, has_heartbeats=not is_file)
    except ImportError as error:
        hint = "expected postgresql+psycopg://…, after pip install 'psycopg[binary]'"
        raise PipelineError(f"{where}: {error}; {hint}") from error
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = " ".join(str(getattr(cause, "orig", cause)).split())
        for secret in filter(None, (parts.password, parts.query.get("password"))):
            reason = reason.replace(str(secret), "***")
        raise StorageLostError(f"{where}: {reason}; the same command resumes") from error


def requeue_lost(study: "Study", storage: SharedStorage) -> list[int]:
    """Mark running trials of dead workers as failed, and queue lost trials again.

    A failed trial without a reason is a lost one. An interrupted trial is always retried. A trial
    whose worker died is retried `RETRIES` times, because the trial itself may have killed the
    worker. The caller must be in the block of `turn`.
    """
    import optuna

    states = optuna.trial.TrialState
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        if storage.is_lost(study, trial):
            study.tell(trial.number, state=states.FAIL, skip_if_finished=True)
    retry, numbers = optuna.storages.RetryHeartbeatStaleTrialCallback(), []
    for number, last in enumerate(latest_tries(study)):
        if last.state == states.FAIL and REASON not in last.user_attrs:
            # The retry extends a list of the trial in place.
            trial = deepcopy(last)
            is_interrupted = trial.user_attrs.pop(INTERRUPTED, False)
            if is_interrupted or len(retry.retry_history(trial)) < RETRIES:
                retry(study, trial)
                numbers.append(number)
    return numbers


def latest_tries(study: "Study") -> "list[FrozenTrial]":
    """Return the last try of each trial. Its position is the number that users see."""
    from optuna.storages import RetryHeartbeatStaleTrialCallback

    first_try, latest = RetryHeartbeatStaleTrialCallback.retried_trial_number, {}
    for trial in study.get_trials(deepcopy=False):
        first = first_try(trial)
        latest[trial.number if first is None else first] = trial
    return list(latest.values())


def count_trials(study: "Study") -> int:
    """Return the number of ended or running trials. A retried trial counts once."""
    return sum(trial.state.name != "WAITING" for trial in latest_tries(study))
