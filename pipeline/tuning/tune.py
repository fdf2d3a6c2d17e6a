"""Search a recipe's hyper-parameters on the train split, with Optuna.

The valid and test splits are never opened. Workers of one call, or of several with one storage,
take their trials one after the other, so that together they never begin more than the budget.
"""

from contextlib import ExitStack, suppress
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import log, out_of_time, progress
from models.config.recipe import Recipe
from models.run_folder import CONFIG, DONE, begin, first_difference, mark_done, read_config
from pipeline.jobs.workers import HERE, Workers
from pipeline.tuning.objective import Question, SearchSpace, ask, give_up_or_go_on, pruner_of
from pipeline.tuning.result import (
    BASELINE,
    TuneResult,
    judge_finalists,
    records_of,
    result_of,
    write_history,
)
from pipeline.tuning.storage import (
    FIRST,
    INTERRUPTED,
    REASON,
    SharedStorage,
    count_trials,
    open_storage,
    requeue_lost,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

QUESTION = "question"  # an attribute of the study


def tune(
    recipe: Recipe,
    space: SearchSpace,
    data_dir: Path,
    *,
    storage: Path | str,
    trials: int,
    out: Path,
    workers: Workers = HERE,
) -> TuneResult:
    """Search the space until `trials` trials have ended or time is up; the same call resumes.

    The first trial is the recipe as it is. A trial that fails or is pruned is recorded with its
    reason, and counts. One that was kept from its end is tried again, and goes on where it was.

    Args:
        storage: a journal file's path, for workers on one disk, or a database URL.
        trials: the whole budget, earlier calls' and other workers' trials included.
        workers: who runs trials, as many at once as they are; 1 = this process itself.

    Raises:
        UsageError: a recipe that does not fit, or `out` or the storage belongs to another question.
        PipelineError: damaged or too little data, a storage that cannot be opened, not one trial
            succeeded, or all workers were killed.
    """
    question = ask(recipe, space, data_dir, out)
    if (out / CONFIG).exists() and "space" not in read_config(out):
        raise UsageError(f"{out}: holds a run, not a search; choose another --out")
    begin(out, question.config(), resume=True)
    (out / DONE).unlink(missing_ok=True)
    n, place = workers.n or 1, storage if "://" in str(storage) else Path(storage).absolute()
    with open_storage(place) as shared:
        study, verdict = _enter(question, shared), None
        parts = [f"search {number} of {n}" for number in range(1, n + 1)]
        with suppress(OutOfTime):
            workers.do([question.job(part, search, question, place, trials) for part in parts])
        with shared.turn():
            requeue_lost(study, shared)  # what the time limit has just cut short
        counted, records = count_trials(study), records_of(study)
        ended = counted >= trials and not {r.state for r in records} & {"running", "waiting"}
        if counted < trials:
            log.info(f"time is up after {counted} of {trials} trials")
        elif not ended:
            log.info("other workers' last trials are still running; the same command goes on")
        elif space.study.finalists:
            with suppress(OutOfTime):
                verdict = judge_finalists(question, records, workers)
            if verdict is None:
                log.info("the finalists have not been judged yet; best.toml is the best trial's")
        result = result_of(study, question, verdict)
    if ended and (verdict or not space.study.finalists):
        mark_done(out)
    return result


def _enter(question: Question, shared: SharedStorage) -> "Study":
    import optuna

    config, name = question.config(), question.space.study.name
    with shared.turn():
        study = optuna.create_study(
            storage=shared.optuna, study_name=name, direction="maximize", load_if_exists=True
        )
        if known := study.user_attrs.get(QUESTION):
            if difference := first_difference(known, config):
                raise UsageError(
                    f"storage: holds a search of {name} with {difference}; choose another --storage"
                )
            return study
        params = question.baseline_params()
        for key in question.space.parameters.keys() - params.keys():
            log.info(f"the recipe's {key} lies outside the search space; the baseline keeps it")
        study.enqueue_trial(params, user_attrs={BASELINE: True})
        study.set_user_attr(QUESTION, config)  # last: killed before, the next call begins again
    return study


def search(question: Question, storage: Path | str, trials: int) -> None:
    """Run trials, beside others that do the same, until none is left.

    Raises:
        PipelineError: the storage has gone, or is not seen from here.
        OutOfTime: the time is over.
    """
    with open_storage(storage) as shared:
        study = shared.study(question.space.study.name, pruner_of(question.space.study))
        while _run_next(question, shared, study, trials):
            write_history(study, question)
            progress("trial", count_trials(study), trials)


def _run_next(question: Question, shared: SharedStorage, study: "Study", trials: int) -> bool:
    import numpy as np
    import optuna

    with ExitStack() as running, ExitStack() as turn:
        turn.enter_context(shared.turn())
        for number in requeue_lost(study, shared):
            log.info(f"trial {number} did not come to its end; it is tried again")
        if count_trials(study) >= trials:
            return False
        if out_of_time():
            raise OutOfTime("out of time before a trial")
        # Seeded anew for each trial, so that a study that was stopped draws what an undisturbed one
        # would have drawn.
        drawn = [question.space.study.seed, len(study.get_trials(deepcopy=False))]
        seed = int(np.random.SeedSequence(drawn).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)

        def objective(trial: "Trial") -> float:
            if shared.running:
                running.enter_context(shared.running(study.study_name, trial.number))
            try:
                recipe, is_baseline = _choose(trial, question), BASELINE in trial.user_attrs
                turn.close()
                folder = question.out / "trials" / str(trial.user_attrs.get(FIRST, trial.number))
                after_fold = give_up_or_go_on(trial, question.space.study, never=is_baseline)
                value = question.cross_validate(recipe, folder, after_fold).value
                log.info(f"trial {trial.number}: {value:.4f}{_params(trial, question)}")
                return value
            except optuna.TrialPruned as pruned:
                log.info(f"trial {trial.number} {pruned}{_params(trial, question)}")
                raise
            except (Exception, KeyboardInterrupt) as error:
                if _is_the_worlds(error):
                    with suppress(Exception):  # on a full disk
                        trial.set_user_attr(INTERRUPTED, True)
                    raise
                is_told = isinstance(error, PipelineError)
                told = str(error) if is_told else f"{type(error).__name__}: {error}"
                reason = " ".join(told.split())
                log.info(f"trial {trial.number} failed: {reason}{_params(trial, question)}")
                trial.set_user_attr(REASON, reason)
                return nan  # a failure to Optuna, which then goes on

        try:
            study.optimize(objective, n_trials=1)
        except AssertionError as error:  # Optuna's, over noting a failure on a full disk
            cause = error.__context__
            raise (cause if isinstance(cause, OSError) else error) from None
    return True


def _choose(trial: "Trial", question: Question) -> Recipe:
    parameters, is_baseline = question.space.parameters, BASELINE in trial.user_attrs
    keys = question.baseline_params() if is_baseline else parameters
    params = {key: parameters[key].suggest(trial, key) for key in keys}
    return question.recipe if is_baseline else question.recipe_with(params)


def _params(trial: "Trial", question: Question) -> str:
    """Return what a trial tries, for the end of its line; keys of the study's model are cut."""
    own, params = f"{question.space.study.model}.", trial.params.items()
    shown = ((key, f"{value:.3g}" if isinstance(value, float) else value) for key, value in params)
    return "".join(f"  {key.removeprefix(own)}={value}" for key, value in shown)


def _is_the_worlds(error: BaseException) -> bool:
    import optuna

    world = KeyboardInterrupt | OSError | OutOfTime | optuna.exceptions.StorageInternalError
    return isinstance(error, world) or isinstance(error.__cause__, OSError)
