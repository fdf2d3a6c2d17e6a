"""Where Optuna keeps the trials of a search: a journal file on a disk, or a database.

Both serve many workers. A worker locks a file while it does a trial. A trial whose file is there
and free was left by a dead worker, and is queued again. A trial of another machine has no such file
here: then Optuna's heartbeats in the database decide.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock, Timeout

from common.errors import PipelineError
from common.files import locked

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage
    from optuna.storages.journal import BaseJournalFileLock
    from optuna.trial import FrozenTrial

HEARTBEAT_S = 60  # three without one: the worker counts as dead
RETRIES = 2  # of a trial whose worker died without a word
# Attributes of a trial.
REASON, INTERRUPTED = "reason", "interrupted"
JOURNAL_START = b'{"op_code"'


@dataclass(frozen=True)
class SharedStorage:
    """A storage that several workers use at once, as one of them sees it.

    Attributes:
        optuna: Optuna's storage.
        locks: Folder of the files that workers lock, one for each try of a trial.
        has_heartbeats: Whether workers may be on machines that do not see the folder of locks.
    """

    optuna: "BaseStorage"
    locks: Path
    has_heartbeats: bool = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep the other workers that see the folder of locks from taking a trial."""
        self.locks.mkdir(parents=True, exist_ok=True)
        with locked(self.locks / "turn"):
            yield

    def running(self, study: str, trial: int) -> FileLock:
        """Return the lock that the worker of a trial holds."""
        return FileLock(self.locks / f"{study}-{trial}")

    def is_lost(self, study: "Study", trial: "FrozenTrial") -> bool:
        """Return whether the worker of a running trial is dead."""
        lock = self.running(study.study_name, trial.number)
        if self.has_heartbeats and not Path(lock.lock_file).exists():
            silent = cast(Any, self.optuna)._get_stale_trial_ids(study._study_id)
            return trial._trial_id in silent
        with suppress(Timeout), lock.acquire(timeout=0):
            return True
        return False

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
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Heartbeat of storage is supposed")
            if "://" in str(place):
                with _database(str(place), out) as shared:
                    yield shared
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
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        what = "is damaged; expected what Optuna writes"
        raise PipelineError(f"{path}: {what}; choose another --storage and --out") from error


@contextmanager
def _database(url: str, out: Path) -> Iterator[SharedStorage]:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError
    from sqlalchemy.pool import NullPool

    class PatientStorage(RDBStorage):
        """Its heartbeats may miss the database: the trial's own calls report the fault."""

        def record_heartbeat(self, trial_id: int) -> None:
            with suppress(SQLAlchemyError, StorageInternalError):
                super().record_heartbeat(trial_id)

    try:
        parts = make_url(url)
    except (ArgumentError, ValueError):
        raise PipelineError("storage: not a database URL; expected dialect://host/name") from None
    where = f"storage {url.partition('?')[0]}"
    if parts.database in (None, "", ":memory:"):
        raise PipelineError(f"{where}: names no database; workers would share nothing")
    is_file = parts.get_backend_name() == "sqlite"
    locks = Path(f"{parts.database}.running") if is_file else out / "running"
    try:
        opened = PatientStorage(
            url,
            {"poolclass": NullPool},  # workers hold no connection while they train
            heartbeat_interval=None if is_file else HEARTBEAT_S,
            grace_period=3 * HEARTBEAT_S,
        )
        yield SharedStorage(opened, locks, has_heartbeats=not is_file)
    except ImportError as error:
        hint = "expected postgresql+psycopg://…, after pip install 'psycopg[binary]'"
        raise PipelineError(f"{where}: {error}; {hint}") from error
    except (SQLAlchemyError, StorageInternalError) as error:
        own = error.__cause__ if isinstance(error, StorageInternalError) else error
        reason = " ".join(str(getattr(own, "orig", own)).split())
        raise PipelineError(f"{where}: {reason}; the same command resumes") from error


def requeue_lost(study: "Study", storage: SharedStorage) -> list[int]:
    """Fail the trials that dead workers left running, and queue lost ones again, in one's turn.

    A failed trial without a reason is a lost one. One that noted that it was interrupted is always
    tried again; one whose worker died without a word, perhaps of it, RETRIES times.
    """
    import optuna

    states = optuna.trial.TrialState
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        if storage.is_lost(study, trial):
            study.tell(trial.number, state=states.FAIL, skip_if_finished=True)
    retry, requeued = optuna.storages.RetryHeartbeatStaleTrialCallback(), []
    for number, last in enumerate(latest_tries(study)):
        if last.state == states.FAIL and REASON not in last.user_attrs:
            trial = deepcopy(last)  # the retry extends a list of the trial's in place
            is_interrupted = trial.user_attrs.pop(INTERRUPTED, False)
            if is_interrupted or len(retry.retry_history(trial)) < RETRIES:
                retry(study, trial)
                requeued.append(number)
    return requeued


def latest_tries(study: "Study") -> "list[FrozenTrial]":
    """Return the last try of each trial. The places are the numbers that users see."""
    from optuna.storages import RetryHeartbeatStaleTrialCallback

    first_try, latest = RetryHeartbeatStaleTrialCallback.retried_trial_number, {}
    for trial in study.get_trials(deepcopy=False):
        first = first_try(trial)
        latest[trial.number if first is None else first] = trial
    return list(latest.values())


def count_trials(study: "Study") -> int:
    """Count the trials that use up a budget: ended or running; a lost and retried one once."""
    return sum(trial.state.name != "WAITING" for trial in latest_tries(study))
