"""Search a recipe's hyper-parameters on the train split, with Optuna.

The valid and test splits are never opened. Workers of one call, or of several with one storage,
take their trials one after the other, so that together they never begin more than the budget.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import log, out_of_time, progress
from models.config.recipe import Recipe
from models.run_folder import CONFIG, DONE, begin, first_difference, mark_done, read_config
from pipeline.jobs.workers import HERE, Workers
from pipeline.run.jobs import as_begun
from pipeline.tuning.objective import (
    STUDY,
    Parameters,
    Question,
    SearchSpace,
    ask,
    give_up_or_go_on,
    pruner_of,
)
from pipeline.tuning.result import (
    BASELINE,
    TuneResult,
    judge_finalists,
    records_of,
    result_of,
    write_history,
)
from pipeline.tuning.storage import (
    AGAIN,
    INTERRUPTED,
    NUMBER,
    REASON,
    REPEATS,
    SharedStorage,
    count_trials,
    numbered,
    open_storage,
    repeats_in_a_row,
    requeue_lost,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
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
    reason, and counts. One that was kept from its end is tried again, and goes on where it was. A
    draw of what has been tried is no trial; after REPEATS of them in a row the search has ended.

    Args:
        storage: a journal file's path, for workers on one disk, or a database URL.
        trials: the whole budget, earlier calls' and other workers' trials included.
        workers: who runs trials, as many at once as they are; 1 = this process itself.

    Raises:
        UsageError: a recipe that does not fit, or `out` or the storage belongs to another question.
        PipelineError: damaged or too little data, a storage that cannot be opened, not one trial
            succeeded, or all workers were killed.
    """
    question = ask(as_begun(recipe, out / "trials" / "0"), space, data_dir, out)
    if (out / CONFIG).exists():
        begun = read_config(out)
        if "space" not in begun:
            raise UsageError(f"{out}: holds a run, not a search; choose another --out")
        _refuse_other_space(f"{out}: was begun", begun, question, "--out")
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
            is_searched = repeats_in_a_row(study) >= REPEATS
        states = Counter(record.state for record in records)
        ended = (counted >= trials or is_searched) and not states["running"] + states["waiting"]
        if counted < trials and is_searched:
            log.info(
                f"the space is searched: after {counted} of {trials} trials, {REPEATS} draws in a "
                "row were of what had been tried"
            )
        if counted < trials and not is_searched:
            told = f"time is up after {counted} of {trials} trials"
            log.info(f"{told}; the same command goes on")
        elif states["waiting"] and not states["running"]:
            more = counted + states["waiting"]
            log.info(
                f"trials that were cut short wait to be tried again: --trials {more} ends them"
            )
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
            where = f"storage: holds a search of {name}"
            _refuse_other_space(where, known, question, "--storage")
            if difference := first_difference(known, config):
                raise UsageError(f"{where} with {difference}; choose another --storage")
            return study
        params = question.baseline_params()
        for key in question.space.parameters.keys() - params.keys():
            log.info(f"the recipe's {key} lies outside the search space; the baseline keeps it")
        study.enqueue_trial(params, user_attrs={BASELINE: True, NUMBER: 0})
        study.set_user_attr(QUESTION, config)  # last: killed before, the next call begins again
    return study


def _refuse_other_space(
    where: str, known: Mapping[str, Any], question: Question, option: str
) -> None:
    """Refuse another space than the one that a search began with, by the first key that differs."""
    spaces = [dict(config["space"]) for config in (known, question.config())]
    for key in sorted(spaces[0].keys() | spaces[1].keys()):
        begun, now = (
            ", ".join(f"{name} = {value}" for name, value in space.get(key, {}).items())
            for space in spaces
        )
        if begun != now and key != STUDY:
            raise UsageError(
                f"{where} with a search space where {key} has {begun or 'no values'}, not "
                f"{now or 'none'}; expected the same space, or choose another {option}"
            )


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
    with ExitStack() as running, ExitStack() as turn:
        turn.enter_context(shared.turn())
        for number in requeue_lost(study, shared):
            log.info(f"trial {number} did not come to its end; it is tried again")
        repeats, known = repeats_in_a_row(study), numbered(study)
        if count_trials(study) >= trials or repeats >= REPEATS:
            return False
        if out_of_time():
            raise OutOfTime("out of time before a trial")
        study.sampler = _sampler(question, study, is_random=repeats > 0)

        def objective(trial: "Trial") -> float:
            if shared.running:
                running.enter_context(shared.running(study.study_name, trial.number))
            params = _drawn(trial, question)
            number = trial.user_attrs.get(NUMBER, len(known))
            tried = {} if number in known else known
            for other, earlier in tried.items():
                if question.decisive(earlier.params) == question.decisive(params):
                    # As in Optuna's FAQ; a failure to it, as it learns nothing from this.
                    trial.set_user_attr(AGAIN, other)
                    value = earlier.value
                    told = earlier.state.name.lower() if value is None else f"{value:.4f}"
                    if not repeats:
                        log.info(
                            f"trial {other} again, not counted: {told}{_shown(params, question)}"
                        )
                    return nan
            trial.set_user_attr(NUMBER, number)
            turn.close()
            return _judged(trial, number, params, question)

        try:
            study.optimize(objective, n_trials=1)
        except (AssertionError, UnboundLocalError) as error:
            # Optuna's, over a full disk or a signal while it notes how a trial ended.
            cause = error.__context__
            raise (cause if isinstance(cause, OSError | KeyboardInterrupt) else error) from None
    return True


def _sampler(question: Question, study: "Study", *, is_random: bool) -> "BaseSampler":
    """Return what draws the next trial.

    It is seeded anew for each, so that a study that was stopped draws what an undisturbed one would
    have drawn.
    """
    import numpy as np
    from optuna.samplers import RandomSampler, TPESampler

    trials = study.get_trials(deepcopy=False)
    n_drawn = len(numbered(study)) + sum(AGAIN in trial.user_attrs for trial in trials)
    drawn = np.random.SeedSequence([question.space.study.seed, n_drawn])
    seed = int(drawn.generate_state(1)[0])
    return RandomSampler(seed) if is_random else TPESampler(seed=seed, constant_liar=True)


def _drawn(trial: "Trial", question: Question) -> Parameters:
    parameters = question.space.parameters
    keys = question.baseline_params() if BASELINE in trial.user_attrs else parameters
    return {key: parameters[key].suggest(trial, key) for key in keys}


def _judged(trial: "Trial", number: int, params: Parameters, question: Question) -> float:
    """Return a trial's value, nan where it fails; say how it ended, and note why."""
    import optuna

    is_baseline = BASELINE in trial.user_attrs
    try:
        recipe = question.recipe if is_baseline else question.recipe_with(params)
        folder = question.out / "trials" / str(number)
        after_fold = give_up_or_go_on(trial, question.space.study, never=is_baseline)
        value = question.cross_validate(recipe, folder, after_fold).value
        log.info(f"trial {number}: {value:.4f}{_shown(params, question)}")
        return value
    except optuna.TrialPruned as pruned:
        log.info(f"trial {number} {pruned}{_shown(params, question)}")
        raise
    except (Exception, KeyboardInterrupt) as error:
        if _is_the_worlds(error) or out_of_time():  # of a signal a library may make another error
            with suppress(Exception):  # on a full disk
                trial.set_user_attr(INTERRUPTED, True)
            raise
        told = (
            str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
        )
        reason = " ".join(told.split())
        log.info(f"trial {number} failed: {reason}{_shown(params, question)}")
        trial.set_user_attr(REASON, reason)
        return nan  # a failure to Optuna, which then goes on


def _shown(params: Parameters, question: Question) -> str:
    own = f"{question.space.study.model}."
    shown = ((k, f"{v:.3g}" if isinstance(v, float) else v) for k, v in params.items())
    return "".join(f"  {key.removeprefix(own)}={value}" for key, value in shown)


def _is_the_worlds(error: BaseException) -> bool:
    import optuna

    world = KeyboardInterrupt | OSError | OutOfTime | optuna.exceptions.StorageInternalError
    return isinstance(error, world) or isinstance(error.__cause__, OSError)
