"""Search a recipe's hyper-parameters on the train split, with Optuna.

The valid and test splits are never opened. Workers of one call, or of several with one storage,
take their trials one after the other, so that together they never begin more than the budget.
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import OutOfTime, PipelineError, UsageError
from common.jobs.workers import HERE, Workers
from common.progress import log, out_of_time, progress
from models.config.recipe import Recipe
from models.run_folder import (
    CONFIG,
    DONE,
    begin,
    check_free,
    first_difference,
    mark_done,
    read_config,
    with_original_name,
)
from pipeline.tuning.objective import (
    Parameters,
    SearchSpace,
    TuningObjective,
    give_up_or_go_on,
    pruner_of,
    tuning_objective,
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
    HEARTBEAT_S,
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
    from optuna.trial import FrozenTrial, Trial, TrialState

QUESTION = "objective"  # an attribute of the study


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
        UsageError: a recipe that does not fit, `out` or the storage is another study's.
        PipelineError: damaged or too little data, a storage that cannot be opened, not one trial
            succeeded, or all workers were killed.
    """
    workers.check()
    objective = tuning_objective(
        with_original_name(recipe, out / "trials" / "0"), space, data_dir, out
    )
    if (out / CONFIG).exists() and "space" not in read_config(out):
        raise UsageError(f"{out}: holds a run, not a search; choose another --out")
    check_free(out, objective.config(), resume=True)
    n, place = workers.n or 1, storage if "://" in str(storage) else Path(storage).absolute()
    if isinstance(place, Path) and out.absolute() in place.parents:
        begin(out, objective.config(), resume=True)  # no journal of another search can be in it
    with open_storage(place, out) as shared:
        study, selection = _enter(objective, shared), None
        begin(out, objective.config(), resume=True)
        (out / DONE).unlink(missing_ok=True)
        parts = [f"search {number} of {n}" for number in range(1, n + 1)]
        with suppress(OutOfTime):
            jobs = [objective.job(part, search, objective, place, trials) for part in parts]
            workers.do([replace(job, repeats=True) for job in jobs], out)
        with shared.turn(study.study_name):
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
            dead = f"; one that died is noticed after {3 * HEARTBEAT_S} s" * bool(shared.silent)
            log.info(
                f"other workers' last trials are still running{dead}; the same command goes on"
            )
        elif space.study.finalists:
            with suppress(OutOfTime):
                selection = judge_finalists(objective, records, workers)
            if selection is None:
                log.info("the finalists have not been judged yet; best.toml is the best trial's")
        result = result_of(study, objective, selection)
    if ended and (selection or not space.study.finalists):
        mark_done(out)
    return result


def _enter(objective: TuningObjective, shared: SharedStorage) -> "Study":
    import optuna

    config, name = objective.config(), objective.space.study.name
    with shared.turn(name):
        study = optuna.create_study(
            storage=shared.optuna, study_name=name, direction="maximize", load_if_exists=True
        )
        if known := study.user_attrs.get(QUESTION):
            if difference := first_difference(known, config):
                raise UsageError(
                    f"storage: holds a search of {name} with {difference}; choose another --storage"
                )
            return study
        params = objective.baseline_params()
        for key in objective.space.parameters.keys() - params.keys():
            log.info(f"the recipe's {key} lies outside the search space; the baseline keeps it")
        study.enqueue_trial(params, user_attrs={BASELINE: True, NUMBER: 0})
        study.set_user_attr(QUESTION, config)  # last: killed before, the next call begins again
    return study


def search(objective: TuningObjective, storage: Path | str, trials: int) -> bool:
    """Run the next trial, beside others that do the same; return False if none is left.

    Raises:
        PipelineError: the storage has gone, or is not seen from here.
        OutOfTime: the time is over.
    """
    with open_storage(storage, objective.out) as shared:
        study = shared.study(objective.space.study.name, pruner_of(objective.space.study))
        has_run = _run_next(objective, shared, study, trials)
        if has_run:
            write_history(study, objective)
            progress("trial", count_trials(study), trials)
        return has_run


def _run_next(
    objective: TuningObjective, shared: SharedStorage, study: "Study", trials: int
) -> bool:
    import optuna
    from optuna.storages._heartbeat import get_heartbeat_thread

    with ExitStack() as running:
        with shared.turn(study.study_name) as check_turn:
            for number in requeue_lost(study, shared):
                log.info(f"trial {number} did not come to its end; it is tried again")
            repeats, known = repeats_in_a_row(study), numbered(study)
            if count_trials(study) >= trials or repeats >= REPEATS:
                return False
            if out_of_time():
                raise OutOfTime("out of time before a trial")
            study.sampler = _sampler(objective, study, is_random=repeats > 0)
            trial = study.ask()
            running.enter_context(shared.running(study.study_name, trial.number))
            running.enter_context(get_heartbeat_thread(trial._trial_id, shared.optuna))
            params = _drawn(trial, objective)
            number = trial.user_attrs.get(NUMBER, len(known))
            check_turn()
            if number not in known and _is_again(trial, params, known, objective, repeats):
                study.tell(trial, state=optuna.trial.TrialState.FAIL)  # it learns nothing from this
                return True
            trial.set_user_attr(NUMBER, number)
        folder = objective.out / "trials" / _folder_name(study, trial, number, shared)
        try:
            state, value = _judged(trial, number, folder, params, objective)
            is_ours = study.tell(trial, value, state, skip_if_finished=True).state == state
        except optuna.exceptions.UpdateFinishedTrialError:
            is_ours = False
        except BaseException:
            with suppress(Exception):  # on a full disk
                study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            raise
        if not is_ours:
            log.info(f"trial {number}: this worker was silent for long, and another one took over")
    return True


def _is_again(
    trial: "Trial",
    params: Parameters,
    known: Mapping[int, "FrozenTrial"],
    objective: TuningObjective,
    repeats: int,
) -> bool:
    """Tell whether a known trial has such parameters, note which one, and say so the first time."""
    for other, earlier in known.items():
        if objective.decisive(earlier.params) == objective.decisive(params):
            trial.set_user_attr(AGAIN, other)
            value = earlier.value
            told = earlier.state.name.lower() if value is None else f"{value:.4f}"
            if not repeats:
                log.info(f"trial {other} again, not counted: {told}{_shown(params, objective)}")
            return True
    return False


def _folder_name(study: "Study", trial: "Trial", number: int, shared: SharedStorage) -> str:
    """Return the trial's number, or another name while the worker of an earlier try lives."""
    from optuna.storages import RetryHeartbeatStaleTrialCallback as Retry

    earlier = Retry.retry_history(shared.optuna.get_trial(trial._trial_id))
    is_used = any(shared.is_running_here(study.study_name, one) for one in earlier)
    return f"{number}-{trial.number}" if is_used else str(number)


def _sampler(objective: TuningObjective, study: "Study", *, is_random: bool) -> "BaseSampler":
    """Return what draws the next trial.

    It is seeded anew for each, so that a study that was stopped draws what an undisturbed one would
    have drawn.
    """
    import numpy as np
    from optuna.samplers import RandomSampler, TPESampler

    trials = study.get_trials(deepcopy=False)
    n_drawn = len(numbered(study)) + sum(AGAIN in trial.user_attrs for trial in trials)
    drawn = np.random.SeedSequence([objective.space.study.seed, n_drawn])
    seed = int(drawn.generate_state(1)[0])
    return RandomSampler(seed) if is_random else TPESampler(seed=seed, constant_liar=True)


def _drawn(trial: "Trial", objective: TuningObjective) -> Parameters:
    parameters = objective.space.parameters
    keys = objective.baseline_params() if BASELINE in trial.user_attrs else parameters
    return {key: parameters[key].suggest(trial, key) for key in keys}


def _judged(
    trial: "Trial", number: int, folder: Path, params: Parameters, objective: TuningObjective
) -> "tuple[TrialState, float | None]":
    """Return how a trial ends, and its value if it is complete; say so, and note a reason."""
    import optuna

    is_baseline, states = BASELINE in trial.user_attrs, optuna.trial.TrialState
    try:
        recipe = objective.recipe if is_baseline else objective.recipe_with(params)
        after_fold = give_up_or_go_on(trial, objective.space.study, never=is_baseline)
        value = objective.cross_validate(recipe, folder, after_fold).value
        log.info(f"trial {number}: {value:.4f}{_shown(params, objective)}")
        return states.COMPLETE, value
    except optuna.TrialPruned as pruned:
        log.info(f"trial {number} {pruned}{_shown(params, objective)}")
        return states.PRUNED, None
    except (Exception, KeyboardInterrupt) as error:
        if _is_the_worlds(error) or out_of_time():  # of a signal a library may make another error
            with suppress(Exception):  # on a full disk
                trial.set_user_attr(INTERRUPTED, True)
            raise
        told = (
            str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
        )
        reason = " ".join(told.split())
        log.info(f"trial {number} failed: {reason}{_shown(params, objective)}")
        trial.set_user_attr(REASON, reason)
        return states.FAIL, None


def _shown(params: Parameters, objective: TuningObjective) -> str:
    own = f"{objective.space.study.model}."
    shown = ((k, f"{v:.3g}" if isinstance(v, float) else v) for k, v in params.items())
    return "".join(f"  {key.removeprefix(own)}={value}" for key, value in shown)


def _is_the_worlds(error: BaseException) -> bool:
    import optuna

    lost = optuna.exceptions.StorageInternalError | optuna.exceptions.UpdateFinishedTrialError
    world = KeyboardInterrupt | OSError | OutOfTime | lost
    return isinstance(error, world) or isinstance(error.__cause__, OSError)
