"""What a worker of a study does: take a trial, train, judge, note; until the budget is used up."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import PipelineError
from models.run_folder import DONE
from models.training.jobs import Progress
from pipeline.tuning.question import Question
from pipeline.tuning.storage.claims import (
    REASON,
    count_trials,
    is_at_rest,
    mark_claimed,
    mark_interrupted,
    requeue_lost,
)
from pipeline.tuning.storage.storage import SharedStorage

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

POLL_S = 0.5  # between looks at whether other workers have ended
OUT_OF_MEMORY = ("out of memory", "allocate memory")  # torch's words on a GPU and on a CPU
DEADLINE = "deadline"  # of time.time(); what all workers of a study stop at
RAN, WAIT, OVER = "ran", "wait", "over"
Say = Callable[[str], None]


class _TrialFailedError(Exception):
    """A trial has failed through its own fault, and its reason is recorded: the study goes on."""


@dataclass(frozen=True)
class Work:
    """What the trials of one study are.

    Attributes:
        study: in the storage.
        enter: queues what must be tried, once; called under claims.
        choose: lets a trial choose what it tries; called under claims.
        judge: trains and returns the trial's values, the score first.
        is_given: tells whether a trial tries the recipe as it was given.
        budget: how many trials there shall be.
        called: what a trial is called.
    """

    study: "Study"
    enter: Callable[[], None]
    choose: Callable[["Trial"], object]
    judge: Callable[["Trial", object], tuple[float, ...]]
    is_given: Callable[["Trial"], bool]
    budget: Callable[[], int]
    called: str = "trial"


@dataclass
class _Outcome:
    """How far the trial in hand has come.

    Attributes:
        trial: its number.
        is_known: it has a value, or failed or was pruned with a reason.
        interruption: what of the world kept it from its end.
    """

    trial: int | None = None
    is_known: bool = False
    interruption: BaseException | None = None


def run_trials(
    work: Work,
    question: Question,
    shared: SharedStorage,
    *,
    deadline: float | None,
    after_trial: Callable[[], object],
    say: Say,
    progress: Progress | None,
) -> None:
    """Run trials until the budget is used up or the time is; wait for other workers' last ones.

    They are waited for because one of them may die, and its trial is then to be tried again.

    Args:
        deadline: of time.time(); no trial is begun later.
        after_trial: called under claims.
    """
    while True:
        step = _run_next(work, question, shared, deadline, say)
        if step == OVER:
            return
        if step == WAIT:
            time.sleep(POLL_S)
            continue
        with shared.claims():
            after_trial()
        if progress:
            progress(work.called, count_trials(work.study), work.budget())


def is_over(study: "Study", deadline: float | None) -> bool:
    """Tell whether the time is up: this command's, or that of one that came later."""
    times = [deadline, study.user_attrs.get(DEADLINE)]
    return any(time.time() >= end for end in times if end is not None)


def _run_next(
    work: Work, question: Question, shared: SharedStorage, deadline: float | None, say: Say
) -> str:
    """Run the next trial, queued or new, to its end, if there is one to be run."""
    import numpy as np
    import optuna

    study, outcome = work.study, _Outcome()
    with ExitStack() as claimed:
        claimed.enter_context(shared.claims())
        for number in requeue_lost(study, shared):
            say(f"{work.called} {number} was lost with its worker; it is tried again")
        work.enter()
        if count_trials(study) >= work.budget():
            return OVER if is_at_rest(study) else WAIT
        if is_over(study, deadline):
            return OVER
        (question.out / DONE).unlink(missing_ok=True)
        # Seeded anew for each trial, so that a study that was stopped draws what an undisturbed one
        # would have drawn.
        drawn = [question.space.study.seed, len(study.get_trials(deepcopy=False))]
        seed = int(np.random.SeedSequence(drawn).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)

        def objective(trial: "Trial") -> tuple[float, ...]:
            outcome.trial = trial.number
            try:
                mark_claimed(trial, shared)
                return _values(trial, work, claimed, outcome, say)
            except BaseException as error:
                if _is_the_worlds_fault(error):
                    outcome.interruption = error
                    mark_interrupted(trial)
                raise

        try:
            study.optimize(objective, n_trials=1, catch=(_TrialFailedError,))
        except BaseException as error:
            if outcome.interruption:  # Optuna's own may be of noting it on a full disk
                raise outcome.interruption from None
            if not isinstance(error, ValueError):
                raise
            # Optuna's, where a trial has ended already: others thought that its worker was dead.
            if not outcome.is_known:
                raise
            say(f"{work.called} {outcome.trial} was given up by other workers; theirs counts")
    return RAN


def _values(
    trial: "Trial", work: Work, claimed: ExitStack, outcome: _Outcome, say: Say
) -> tuple[float, ...]:
    """Choose, let others take their trials, and judge; note the reason of a failure."""
    import optuna

    try:
        chosen = work.choose(trial)
        claimed.close()
        values = work.judge(trial, chosen)
    except optuna.TrialPruned as pruned:
        say(f"{work.called} {trial.number} {pruned}")
        outcome.is_known = True
        raise
    except optuna.exceptions.UpdateFinishedTrialError as error:
        outcome.is_known = True
        raise _TrialFailedError("given up by other workers") from error
    except Exception as error:
        if not _is_the_trials_fault(error, is_given=work.is_given(trial)):
            raise
        reason = one_line(error)
        say(f"{work.called} {trial.number} failed: {reason}")
        outcome.is_known = True
        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            trial.set_user_attr(REASON, reason)
        raise _TrialFailedError(reason) from error
    cost = "".join(f", {value:.3g} s" for value in values[1:])
    say(f"{work.called} {trial.number}: {values[0]:.4f}{cost}")
    outcome.is_known = True
    return values


def _is_the_trials_fault(error: Exception, *, is_given: bool) -> bool:
    """Tell a recipe that cannot be trained from a full disk, and from a defect of ours.

    Whatever a combination of values provokes is its fault; where the recipe as it was given
    provokes something that no message was written for, the fault is ours.
    """
    if _is_the_worlds_fault(error):
        return False
    return not is_given or isinstance(error, PipelineError) or _is_out_of_memory(error)


def _is_the_worlds_fault(error: BaseException) -> bool:
    """Tell Ctrl-C, SIGTERM, a full disk and a storage out of reach from all else."""
    import optuna

    world = KeyboardInterrupt | OSError | optuna.exceptions.StorageInternalError
    return isinstance(error, world) or isinstance(error.__cause__, OSError)


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in OUT_OF_MEMORY)
    )


def one_line(error: Exception) -> str:
    """Say in one line what went wrong in a trial."""
    text = " ".join(str(error).split())
    if _is_out_of_memory(error):
        return f"out of memory: {text}".removesuffix(": ")
    return text if isinstance(error, PipelineError) else f"{type(error).__name__}: {text}"
