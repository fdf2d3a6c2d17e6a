"""Search a recipe's hyper-parameters on the train split, with Optuna.

The valid and test splits are never opened. Workers that share OUT take their trials one after the
other. Machines that share a database do not wait for each other: each machine but one may begin a
trial more than the budget.
"""

import json
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import OutOfTime, PipelineError, UsageError
from common.files import write_text
from common.jobs.workers import INLINE, Workers
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
    pruner_of,
    report_folds,
    tuning_objective,
)
from pipeline.tuning.storage import (
    INTERRUPTED,
    REASON,
    SharedStorage,
    count_trials,
    latest_tries,
    open_storage,
    requeue_lost,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial, TrialState

OBJECTIVE = "objective"  # an attribute of the study
BASELINE = "baseline"  # marks the trial that is the recipe as it was given
LOST = "did not come to its end: killed, interrupted, or out of disk"


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a search.

    Attributes:
        number: Number of the trial, from 0 without a gap.
        state: "complete", "pruned", "fail", "running" or "waiting".
        value: Its cross-validated metric, higher is better. None unless complete.
        params: Values by dotted recipe key. Those of the baseline are in the space.
        is_baseline: Whether it is the recipe as it was given.
        reason: Why it failed or was pruned.
        seconds: Wall time.
    """

    number: int
    state: str
    value: float | None
    params: Parameters
    is_baseline: bool
    reason: str | None
    seconds: float | None


@dataclass(frozen=True)
class TuneResult:
    """The result of a search so far.

    Attributes:
        best_recipe: TOML file of the best trial's recipe.
        best: The trial with the highest value.
        baseline_value: Value of the recipe as given. None if that trial failed.
        trials: All trials.
    """

    best_recipe: Path
    best: TrialRecord
    baseline_value: float | None
    trials: tuple[TrialRecord, ...]


def tune(
    recipe: Recipe,
    space: SearchSpace,
    data_dir: Path,
    *,
    storage: Path | str,
    trials: int,
    out: Path,
    workers: Workers = INLINE,
) -> TuneResult:
    """Search the space until `trials` trials have ended or time is up; the same call resumes.

    The first trial is the recipe as it is. A trial that fails or is pruned is recorded with its
    reason, and counts. One that was kept from its end is tried again, and goes on where it was.

    Args:
        recipe: The recipe.
        space: The search space.
        data_dir: Folder of the data.
        storage: Path of a journal file, for workers on one disk, or a database URL.
        trials: Number of trials, with those of earlier calls and of other workers.
        out: Folder of the trials.
        workers: Workers that run trials, as many at once as they are.

    Raises:
        UsageError: The recipe does not fit, or `out` or the storage is another study's.
        PipelineError: Damaged or too little data, a storage that cannot be opened, not one trial
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
        begin(out, objective.config(), resume=True)
        study = _enter(objective, shared)
        (out / DONE).unlink(missing_ok=True)
        parts = [f"search {number} of {n}" for number in range(1, n + 1)]
        with suppress(OutOfTime):
            jobs = [objective.job(part, search, objective, place, trials) for part in parts]
            workers.do([replace(job, repeats=True) for job in jobs], out)
        with shared.turn():
            requeue_lost(study, shared)  # what the time limit has just cut short
        result = _result(study, objective)
    n_ended = sum(trial.state not in ("running", "waiting") for trial in result.trials)
    if n_ended >= max(trials, len(result.trials)):
        mark_done(out)
    else:
        log.info(f"{n_ended} of {trials} trials have ended; the same command resumes")
    return result


def _enter(objective: TuningObjective, shared: SharedStorage) -> "Study":
    import optuna

    config, name = objective.config(), objective.space.study.name
    with shared.turn():
        study = optuna.create_study(
            storage=shared.optuna, study_name=name, direction="maximize", load_if_exists=True
        )
        if known := study.user_attrs.get(OBJECTIVE):
            if difference := first_difference(known, config):
                raise UsageError(
                    f"storage: holds a search of {name} with {difference}; choose another --storage"
                )
            return study
        params = objective.baseline_params()
        for key in objective.space.parameters.keys() - params.keys():
            log.info(f"the recipe's {key} lies outside the search space; the baseline keeps it")
        study.enqueue_trial(params, user_attrs={BASELINE: True}, skip_if_exists=True)
        study.set_user_attr(OBJECTIVE, config)  # last: killed before, the next call begins again
    return study


def search(objective: TuningObjective, storage: Path | str, trials: int) -> bool:
    """Run the next trial, beside others that do the same; return False if none is left.

    Args:
        objective: The objective.
        storage: Path of the journal file, or a database URL.
        trials: Number of trials of the search.

    Raises:
        PipelineError: The storage has gone, or is not seen from here.
        OutOfTime: The time is over.
    """
    with open_storage(storage, objective.out) as shared:
        study = shared.study(objective.space.study.name, pruner_of(objective.space.study))
        has_run = _run_next(objective, shared, study, trials)
        if has_run:
            _write_trials(study, objective)
            progress("trial", count_trials(study), trials)
        return has_run


def _run_next(
    objective: TuningObjective, shared: SharedStorage, study: "Study", trials: int
) -> bool:
    import optuna
    from optuna.storages._heartbeat import get_heartbeat_thread

    with ExitStack() as running:
        with shared.turn():
            for number in requeue_lost(study, shared):
                log.info(f"trial {number} did not come to its end; it is tried again")
            if count_trials(study) >= trials:
                return False
            if out_of_time():
                raise OutOfTime("out of time before a trial")
            trial = study.ask()
            running.enter_context(shared.running(study.study_name, trial.number))
            running.enter_context(get_heartbeat_thread(trial._trial_id, shared.optuna))
            number = [one.number for one in latest_tries(study)].index(trial.number)
            params = _draw(trial, number, study, objective)
        try:
            state, value = _judge(trial, number, params, objective)
            study.tell(trial, value, state, skip_if_finished=True)
        except optuna.exceptions.UpdateFinishedTrialError:
            log.info(f"trial {number}: this worker was silent for long, and another one took over")
        except BaseException:
            with suppress(Exception):  # on a full disk
                study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            raise
    return True


def _draw(trial: "Trial", number: int, study: "Study", objective: TuningObjective) -> Parameters:
    """Choose the parameters of a trial.

    The sampler is seeded for each trial, so a search that was stopped draws what an undisturbed
    search would have drawn.
    """
    import numpy as np
    from optuna.samplers import TPESampler

    seed = np.random.SeedSequence([objective.space.study.seed, number]).generate_state(1)[0]
    study.sampler = TPESampler(seed=int(seed), constant_liar=True)
    parameters = objective.space.parameters
    keys = objective.baseline_params() if BASELINE in trial.user_attrs else parameters
    return {key: parameters[key].suggest(trial, key) for key in keys}


def _judge(
    trial: "Trial", number: int, params: Parameters, objective: TuningObjective
) -> "tuple[TrialState, float | None]":
    """Return how a trial ends, and its value if it is complete; say so, and note a reason."""
    import optuna

    is_baseline, states = BASELINE in trial.user_attrs, optuna.trial.TrialState
    prefix = f"{objective.space.study.model}."
    texts = ((k, f"{v:.3g}" if isinstance(v, float) else v) for k, v in params.items())
    shown = "".join(f"  {key.removeprefix(prefix)}={value}" for key, value in texts)
    try:
        recipe = objective.recipe if is_baseline else objective.recipe_with(params)
        after_fold = report_folds(trial, objective.space.study, never_prune=is_baseline)
        folder = objective.out / "trials" / str(number)
        value = objective.cross_validate(recipe, folder, after_fold)
        log.info(f"trial {number}: {value:.4f}{shown}")
        return states.COMPLETE, value
    except optuna.TrialPruned as pruned:
        log.info(f"trial {number} {pruned}{shown}")
        return states.PRUNED, None
    except (Exception, KeyboardInterrupt) as error:
        if _is_from_outside(error) or out_of_time():  # a library may wrap what a signal raised
            with suppress(Exception):  # on a full disk
                trial.set_user_attr(INTERRUPTED, True)
            raise
        is_known = isinstance(error, PipelineError)
        text = str(error) if is_known else f"{type(error).__name__}: {error}"
        reason = " ".join(text.split())
        log.info(f"trial {number} failed: {reason}{shown}")
        trial.set_user_attr(REASON, reason)
        return states.FAIL, None


def _is_from_outside(error: BaseException) -> bool:
    import optuna

    lost = optuna.exceptions.StorageInternalError | optuna.exceptions.UpdateFinishedTrialError
    outside = KeyboardInterrupt | OSError | OutOfTime | lost
    return isinstance(error, outside) or isinstance(error.__cause__, OSError)


def _write_trials(study: "Study", objective: TuningObjective) -> TuneResult | None:
    """Write trials.json, and best.toml if a trial has succeeded; else return None."""
    records = tuple(
        TrialRecord(
            number=number,
            state=(state := trial.state.name.lower()),
            value=trial.value if state == "complete" else None,
            params=dict(trial.params),
            is_baseline=BASELINE in trial.user_attrs,
            reason=str(trial.user_attrs.get(REASON, LOST)) if state in ("fail", "pruned") else None,
            seconds=trial.duration.total_seconds() if trial.duration else None,
        )
        for number, trial in enumerate(latest_tries(study))
    )
    rows = [asdict(record) for record in records]
    write_text(objective.out / "trials.json", json.dumps(rows, indent=1, allow_nan=False))
    complete = [record for record in records if record.value is not None]
    if not complete:
        return None
    # Of equal values the baseline, then the earliest.
    best = min(complete, key=lambda r: (-(r.value or 0.0), not r.is_baseline, r.number))
    recipe, path = objective.recipe, objective.out / "best.toml"
    if not best.is_baseline:
        tuned = objective.recipe_with(best.params)
        recipe = tuned.model_copy(update={"name": f"{recipe.name}-tuned"})
    write_text(path, recipe.to_toml())
    baseline = next((record.value for record in complete if record.is_baseline), None)
    return TuneResult(path, best, baseline, records)


def _result(study: "Study", objective: TuningObjective) -> TuneResult:
    result = _write_trials(study, objective)
    if result is None:
        tries = latest_tries(study)
        reasons = [trial.user_attrs[REASON] for trial in tries if REASON in trial.user_attrs]
        why = "no trial has come to its end yet; the same command resumes"
        if reasons:
            why = f"none of {len(tries)} trials succeeded; the last one: {reasons[-1]}"
        raise PipelineError(f"{objective.out}: {why}")
    if result.best.is_baseline:
        log.info("no trial beat the recipe as it was; best.toml is that recipe")
    return result
