"""Which trial is whose, which ones were lost with their worker, and how many the budget has left.

All that changes the queue is done by one worker at a time, see SharedStorage.claims.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pipeline.tuning.storage.storage import SharedStorage

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

RETRIES = 1  # of a trial that may itself be what kills its workers
REASON, WORKER, INTERRUPTED = "reason", "worker", "interrupted"  # what a trial notes of itself
LOST = "did not come to its end: killed, interrupted, or out of disk"


def count_trials(study: "Study") -> int:
    """Count the trials that use up the budget: ended or running; a lost and retried one once."""
    trials = study.get_trials(deepcopy=False)
    waiting = [trial for trial in trials if trial.state.name == "WAITING"]
    return len(trials) - len(waiting) - len(_replaced(trials))


def count_entered(study: "Study") -> int:
    """Count what was queued or begun; a lost and retried trial once."""
    trials = study.get_trials(deepcopy=False)
    return len(trials) - len(_replaced(trials))


def is_at_rest(study: "Study") -> bool:
    """Tell whether no trial is running or waiting."""
    trials = study.get_trials(deepcopy=False)
    return all(trial.state.is_finished() for trial in trials)


def reason_of(trial: "FrozenTrial") -> str | None:
    """Say why a trial failed or was pruned; None if it was not."""
    if trial.state.name not in ("FAIL", "PRUNED"):
        return None
    return str(trial.user_attrs.get(REASON, LOST))


def mark_claimed(trial: "Trial", shared: SharedStorage) -> None:
    """Note whose trial it is, in a way that its loss is found out from now on."""
    shared.wait_for_heartbeat(trial._trial_id)
    trial.set_user_attr(WORKER, shared.worker)


def mark_interrupted(trial: "Trial") -> None:
    """Note that the world kept a trial from its end, so that it costs no retry; if that can be."""
    with suppress(Exception):  # on a full disk; the worker's orderly end tells as much
        trial.set_user_attr(INTERRUPTED, True)


def requeue_lost(study: "Study", shared: SharedStorage) -> list[int]:
    """Fail the trials that dead workers left running, and queue lost ones again. Under claims only.

    A failed trial without a reason is one that the world kept from its end: killed, interrupted,
    out of disk. Only a worker that died without a word uses up the trial's retry, since the trial
    may be what it died of. A running trial without a worker was being claimed by one that went over
    it, since nobody is claiming now.

    Returns:
        The numbers of the trials that are tried again.
    """
    import optuna

    states = optuna.trial.TrialState
    optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(states.RUNNING,)):
        worker = trial.user_attrs.get(WORKER)
        in_order = worker is not None and shared.ended_in_order(worker)
        if worker is None or in_order or not shared.lives(worker):
            if worker is None or in_order:
                study._storage.set_trial_user_attr(trial._trial_id, INTERRUPTED, True)
            study.tell(trial.number, state=states.FAIL, skip_if_finished=True)
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback()
    trials = study.get_trials()  # copies, since the retry extends a list of the trial's in place
    replaced, requeued = _replaced(trials), []
    silent = {trial.number for trial in trials if INTERRUPTED not in trial.user_attrs}
    for trial in trials:
        lost = trial.state == states.FAIL and REASON not in trial.user_attrs
        attempts = {*trial.system_attrs.get("retry_history", []), trial.number}
        if lost and trial.number not in replaced and len(attempts & silent) <= RETRIES:
            for note in (WORKER, INTERRUPTED):
                trial.user_attrs.pop(note, None)
            retry(study, trial)
            requeued.append(trial.number)
    return requeued


def _replaced(trials: Sequence["FrozenTrial"]) -> set[int]:
    """Return the numbers of trials of which another trial is the retry."""
    return {number for trial in trials for number in trial.system_attrs.get("retry_history", [])}
