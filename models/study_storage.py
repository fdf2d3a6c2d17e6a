"""Where Optuna keeps the trials of a study, and what becomes of trials whose worker died.

A journal file is for one worker at a time, which a lock enforces: every trial that is still
running when a worker starts then belongs to a dead one. A database serves many workers; each says
every minute that it lives, and the trials of those that fall silent are tried again.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from data.errors import PipelineError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

HEARTBEAT_S = 60
SILENT_S = 180
RETRIES = 1
REASON = "reason"
LOST = "did not come to its end: killed, interrupted, or out of disk"
JOURNAL_START = b'{"op_code"'


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna's log and its remarks on experimental parts; restore them afterwards."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


@contextmanager
def open_study(storage: Path | str, name: str) -> Iterator["Study"]:
    """Open or create the study called `name`, with no trial left running by a dead worker.

    Args:
        storage: a journal file's path, or a database URL such as postgresql://user@host/name.
        name: two studies of different names may share a storage.

    Raises:
        PipelineError: the storage cannot be opened, or another worker has the journal.
    """
    import optuna

    if isinstance(storage, str) and "://" in storage:
        yield _study(_database(storage), name)
        return
    path = Path(storage)
    with _sole_worker(path):
        backend = optuna.storages.journal.JournalFileBackend(str(path))
        try:
            study = _study(optuna.storages.JournalStorage(backend), name)
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"{path}: not a tuning journal; choose another --storage"
            ) from error
        _retry_lost_trials(study)
        yield study


def count_trials(study: "Study") -> int:
    """Count the trials that use up the budget: ended or running; a lost and retried one once."""
    trials = study.get_trials(deepcopy=False)
    replaced = _replaced(trials)
    waiting = [trial for trial in trials if trial.state.name == "WAITING"]
    return len(trials) - len(waiting) - len(replaced)


def is_at_rest(study: "Study") -> bool:
    """Tell whether no trial is running or waiting."""
    trials = study.get_trials(deepcopy=False)
    return all(trial.state.is_finished() for trial in trials)


def reason_of(trial: "FrozenTrial") -> str | None:
    """Say why a trial failed; None if it did not."""
    if trial.state.name != "FAIL":
        return None
    return str(trial.user_attrs.get(REASON, LOST))


def _study(storage: "BaseStorage", name: str) -> "Study":
    import optuna

    return optuna.create_study(
        storage=storage, study_name=name, direction="maximize", load_if_exists=True
    )


def _database(url: str) -> "BaseStorage":
    """Open a database that many workers share.

    Raises:
        PipelineError: not a database URL, its driver is not installed, or it cannot be reached.
    """
    import optuna
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        shown = make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError as error:
        raise PipelineError("storage: not a database URL; expected dialect://host/name") from error
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)
    try:
        return optuna.storages.RDBStorage(
            url,
            heartbeat_interval=HEARTBEAT_S,
            grace_period=SILENT_S,
            heartbeat_stale_trial_callback=retry,
        )
    except ImportError as error:
        raise PipelineError(f"storage {shown}: its database driver is not installed") from error
    except (SQLAlchemyError, RuntimeError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        raise PipelineError(f"storage {shown}: cannot be opened: {cause}") from error


@contextmanager
def _sole_worker(journal: Path) -> Iterator[None]:
    """Hold the journal's lock, which the system drops when the process ends, however it ends.

    Raises:
        PipelineError: another worker holds it, or the file cannot be written.
    """
    import fcntl

    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        file = journal.open("ab+")
    except OSError as error:
        raise PipelineError(f"{journal}: cannot be written: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PipelineError(
                f"{journal}: another worker is tuning with this journal; wait for it, or give "
                "all workers one database URL"
            ) from error
        _mend(journal)
        yield


def _mend(journal: Path) -> None:
    """Cut off a last line that a killed worker did not finish; what follows would be unreadable.

    Raises:
        PipelineError: the file is something else than a journal.
    """
    content = journal.read_bytes()
    if content and not content.startswith(JOURNAL_START):
        raise PipelineError(f"{journal}: not a tuning journal; choose another --storage")
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(journal, whole)


def _retry_lost_trials(study: "Study") -> None:
    """Fail the trials that a dead worker left running, and queue each once more.

    A failed trial without a reason is one that the world kept from its end: killed, interrupted,
    out of disk.
    """
    import optuna

    states = optuna.trial.TrialState
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        study.tell(trial.number, state=states.FAIL)
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=RETRIES)
    trials = study.get_trials()  # copies, since the retry extends a list of the trial's in place
    replaced = _replaced(trials)
    for trial in trials:
        lost = trial.state == states.FAIL and REASON not in trial.user_attrs
        if lost and trial.number not in replaced:
            retry(study, trial)


def _replaced(trials: list["FrozenTrial"]) -> set[int]:
    """Return the numbers of trials of which another trial is the retry."""
    return {number for trial in trials for number in trial.system_attrs.get("retry_history", [])}
