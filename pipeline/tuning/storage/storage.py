"""Where Optuna keeps the trials of a study: a journal file on a disk, or a database.

Both serve several workers at once. How the trials of a worker that died are found out differs: see
pipeline/tuning/storage/journal.py and pipeline/tuning/storage/database.py; what becomes of them
does not: pipeline/tuning/storage/claims.py.
"""

import os
import socket
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import PipelineError
from pipeline.tuning.storage.database import (
    connected,
    database_claims,
    database_storage,
    wait_for_heartbeat,
)
from pipeline.tuning.storage.journal import (
    claims_of,
    ended_in_order,
    journal_storage,
    lives,
    living_worker,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage

Storage = Path | str


@dataclass(frozen=True)
class SharedStorage:
    """A storage that several workers use at once, as one of them sees it.

    Attributes:
        storage: Optuna's.
        worker: this worker's name; no other ever has it.
        claims: keeps all other workers from taking a trial while it is entered.
        lives: tells whether the worker of a running trial is alive; where heartbeats tell, Optuna
            ends the trials of the dead itself, and it is always true.
        ended_in_order: tells whether a worker went as it should, on Ctrl-C and a full disk too,
            though its trial could not be noted as ended; False where that is not known.
        wait_for_heartbeat: of a trial that this worker has begun, by its id in the storage; where
            there are none, returns at once.
    """

    storage: "BaseStorage"
    worker: str
    claims: Callable[[], AbstractContextManager[None]]
    lives: Callable[[str], bool]
    ended_in_order: Callable[[str], bool] = lambda worker: False
    wait_for_heartbeat: Callable[[int], None] = lambda trial_id: None

    def study(
        self,
        name: str,
        directions: Sequence[str] = ("maximize",),
        pruner: "BasePruner | None" = None,
    ) -> "Study":
        """Open or begin the study called `name`; studies of several names may share a storage."""
        import optuna

        return optuna.create_study(
            storage=self.storage,
            study_name=name,
            directions=list(directions),
            pruner=pruner or optuna.pruners.NopPruner(),
            load_if_exists=True,
        )

    def others(self, name: str) -> int:
        """Count the studies that the study called `name` begins beside; 0 if it is there already.

        What belongs to another study, as its finalists do, is no study by itself.
        """
        import optuna

        names = optuna.get_all_study_names(self.storage)
        alone = [n for n in names if not any(n.startswith(f"{other}:") for other in names)]
        return 0 if name in names else len(alone)


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
def open_storage(storage: Storage) -> Iterator[SharedStorage]:
    """Open a storage as a new worker, which lives until the block ends.

    Args:
        storage: a journal file's path, or a database URL such as postgresql://user@host/name.

    Raises:
        PipelineError: the storage cannot be opened, or a database goes away.
    """
    if isinstance(storage, str) and "://" in storage:
        opened = database_storage(storage)
        name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        with connected(storage):
            yield SharedStorage(
                opened,
                name,
                partial(database_claims, storage),
                lives=lambda worker: True,
                wait_for_heartbeat=partial(wait_for_heartbeat, opened),
            )
        return
    journal = Path(storage)
    opened = journal_storage(journal)
    try:
        with living_worker(journal) as name:
            claims = partial(claims_of, journal)
            ended = partial(ended_in_order, journal)
            yield SharedStorage(opened, name, claims, partial(lives, journal), ended)
    except PermissionError as error:
        raise PipelineError(f"{error.filename}: cannot be written: {error.strerror}") from error
