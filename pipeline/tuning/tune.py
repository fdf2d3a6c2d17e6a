"""Search a recipe's hyper-parameters on the train split, with Optuna.

A trial is one recipe; its value is the mean metric of one model, or of a blend, over train graphs
that were held out, whole architectures at a time. The valid and test splits are never opened. The
value of the winner is the best of many noisy ones and so too high: judge the recipe on other data.

Any number of workers share a study: processes of one call, further calls with the same storage, and
with a database, calls on other machines. They take their trials one after the other, so that
together they never begin more than the budget.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import UsageError
from models.run_folder import DONE, mark_done
from models.training.jobs import Progress
from pipeline.tuning.finalists import finals_study, judge_finalists
from pipeline.tuning.history import NOT_COMPARED, result_of
from pipeline.tuning.processes import work_on_processes
from pipeline.tuning.question import ask, check_belongs
from pipeline.tuning.result import TuneResult
from pipeline.tuning.search import Budget, join, search_study, work_on
from pipeline.tuning.space import SearchSpace
from pipeline.tuning.storage.claims import count_trials, is_at_rest
from pipeline.tuning.storage.storage import Storage, open_storage, quiet_optuna


def tune(
    recipe_table: dict[str, Any],
    space: SearchSpace,
    data_dir: Path,
    *,
    storage: Storage,
    trials: int,
    out: Path,
    workers: int = 1,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> TuneResult:
    """Search the space until `trials` trials have ended; the same call again resumes.

    The first trial is the recipe as it is. A trial that fails or is pruned is recorded with its
    reason, and counts. One that Ctrl-C, SIGTERM or a full disk kept from its end is tried again,
    one whose worker was killed once more; either counts once. Another recipe, space or train split
    is another study in the storage, and needs another `out`. Where the space asks for finalists,
    they are trained when the search has ended.

    Args:
        recipe_table: the baseline, as `Recipe.model_dump` gives it.
        space: what may change.
        data_dir: the folder that holds npz/; only the train split of one collection is read.
        storage: a journal file's path, for workers on one disk, or a database URL.
        trials: the whole budget, earlier calls' and other workers' trials included.
        out: holds trials/NUMBER/ (a run folder each), trials.json and best.toml.
        workers: processes of this call, each with the recipe's threads; 1 = this process itself.
        timeout_s: no trial is begun later than this many seconds after the call, nor after the time
            of a call that is running already.
        say: told, in words, how each trial ended and what was left out.
        progress: told how far a training and the study are.

    Raises:
        UsageError: no budget, seconds that are none, a recipe that does not fit, or `out` belongs
            to another study.
        PipelineError: damaged or too little data, a storage that cannot be opened, not one trial
            succeeded, or as a worker's.
        KeyboardInterrupt: on SIGTERM too.
    """
    _check(trials, workers, timeout_s)
    question = ask(recipe_table, space, data_dir, out, say=say, progress=progress)
    question.begin()
    numbers = question.trial_numbers()
    with interrupted_by_sigterm(), quiet_optuna(), open_storage(storage) as shared:
        others = shared.others(question.study_name())
        if others:
            say(f"a new study begins beside {others} in the storage, of another question")
        study = search_study(question, shared)
        check_belongs(question, numbers, known=len(study.get_trials(deepcopy=False)))
        budget = Budget(trials, join(study, shared, timeout_s))
        if workers > 1:
            work_on_processes(
                question, storage, budget, workers=workers, say=say, progress=progress
            )
        else:
            work_on(
                question, shared, budget, say=say, progress=progress, training_progress=progress
            )
        with shared.claims():
            counted = count_trials(study)
            ended = counted >= trials and is_at_rest(study)
            verdict = None
            if ended and space.study.finalists:
                verdict = judge_finalists(finals_study(question, shared), study, question)
            result = result_of(study, question, verdict)
            if ended and (verdict or not space.study.finalists):
                mark_done(out)
            else:  # of a search that others go on with, or whose finalists came later
                (out / DONE).unlink(missing_ok=True)
    if counted < trials and budget.deadline is not None and time.time() >= budget.deadline:
        say(f"time is up after {counted} of {trials} trials")
    if result.baseline_value is None:
        say(f"best.toml, trial {result.best.number}: {NOT_COMPARED}")
    if verdict:
        say(verdict.reason)
    elif space.study.finalists:
        say("the finalists have not been judged yet; best.toml is the best trial's")
    elif result.is_baseline:
        say("no trial beat the recipe as it was; best.toml is that recipe")
    return result


def _check(trials: int, workers: int, timeout_s: float | None) -> None:
    """Raise UsageError where there is no budget, or no such time."""
    if trials < 1 or workers < 1:
        raise UsageError(f"trials = {trials}, workers = {workers}: expected at least 1 of each")
    if timeout_s is not None and not 0 <= timeout_s < math.inf:
        raise UsageError(f"timeout_s = {timeout_s}: expected seconds, 0 or more")


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C while the block runs, unless the caller takes it in a way of its own.

    Only a process's main thread can.
    """
    own = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    if own or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
