"""Search a recipe's hyper-parameters on the train split, with Optuna.

The valid and test splits are never opened. Workers that share OUT take their trials one after the
other. Machines that share a database do not wait for each other: each machine but one may begin a
trial more than the budget.
"""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

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
    TuningObjective,
    pruner_of,
    report_folds,
    tuning_objective,
)
from pipeline.tuning.page import PAGE, importances_of, write_search_page
from pipeline.tuning.space import Parameters, SearchSpace
from pipeline.tuning.storage import (
    GRACE_S,
    INTERRUPTED,
    REASON,
    SharedStorage,
    count_trials,
    latest_tries,
    open_storage,
    patiently,
    requeue_lost,
)

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial, TrialState

# An attribute of the study.
OBJECTIVE = "objective"
# An attribute of the trial of the unchanged recipe.
BASELINE = "baseline"
# Interval of looks at trials of other workers.
WAIT_S = 2.0
LOST = "did not end: killed, interrupted, or out of disk"
T = TypeVar("T")


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a search.

    Attributes:
        number: Number of the trial, from 0 without a gap.
        state: "complete", "pruned", "fail", "running" or "waiting".
        value: Its cross-validated metric, higher is better. None unless complete.
        params: Values by dotted recipe key. Those of the baseline are in the space.
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
        baseline_value: Value of the unchanged recipe. None if that trial failed.
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
    """Search the space until enough trials have ended or the time is over. The same call resumes.

    The first trial is the unchanged recipe. A trial that fails or is pruned is recorded with its
    reason, and counts. An interrupted trial is retried, and resumes. `trials` includes those of
    earlier calls and other workers. `open_storage` explains `storage`.
    """
    workers.check()
    objective = tuning_objective(
        with_original_name(recipe, out / "trials" / "0"), space, data_dir, out
    )
    if (out / CONFIG).exists() and "space" not in read_config(out):
        raise UsageError(f"{out}: has a run, not a search; choose another --out")
    check_free(out, objective.config(), resume=True)
    n, place = workers.n or 1, storage if "://" in str(storage) else Path(storage).absolute()
    if isinstance(place, Path) and out.absolute() in place.parents:
        # The storage is in `out`, so it cannot be of another search.
        begin(out, objective.config(), resume=True)
    with open_storage(place, out) as store:
        study = _checked_study(objective, store)
        # Only now, so that a refused storage leaves the folder free.
        begin(out, objective.config(), resume=True)
        _enter(objective, store, study)
    (out / DONE).unlink(missing_ok=True)
    parts = [f"search {number} of {n}" for number in range(1, n + 1)]
    jobs = [objective.job(part, search, objective, place, trials) for part in parts]
    jobs = [replace(job, repeats=True) for job in jobs]
    _finish(lambda: workers.do(jobs, out), objective, place, trials)

    result = _on_study(objective, place, lambda _, study: _result(study, objective))
    n_ended = sum(trial.state not in ("running", "waiting") for trial in result.trials)
    if n_ended >= max(trials, len(result.trials)):
        mark_done(out)
    else:
        log.info(f"{n_ended} of {trials} trials have ended; the same command resumes")
    return result


def _on_study(
    objective: TuningObjective,
    place: Path | str,
    work: "Callable[[SharedStorage, Study], T]",
) -> T:
    """Open the storage and do work on the study, again if the database goes away meanwhile."""

    def attempt() -> T:
        with open_storage(place, objective.out) as store:
            return work(store, store.study(objective.space.study.name))

    return patiently(attempt)


def _finish(
    work: Callable[[], object], objective: TuningObjective, place: Path | str, trials: int
) -> None:
    """Work until all trials have ended, also those of killed workers, or the time is over."""
    is_over, n_before, waits_until = False, -1, 0.0
    while not is_over:
        try:
            work()
        except OutOfTime:
            is_over = True
        states = _on_study(objective, place, _states)
        n_begun, n_running = len(states) - states.count("WAITING"), states.count("RUNNING")
        if is_over or not (n_running or ("WAITING" in states and n_begun < trials)):
            return
        if n_begun - n_running > n_before:
            n_before, waits_until = n_begun - n_running, time.monotonic() + GRACE_S
        if time.monotonic() > waits_until or out_of_time():
            problem = f"{n_before} of {trials} trials have ended, and {n_running} run elsewhere"
            raise PipelineError(f"{objective.out}: {problem}; the same command resumes")
        time.sleep(WAIT_S * bool(n_running))


def _states(store: SharedStorage, study: "Study") -> list[str]:
    """Queue lost trials again, and return the name of each trial's state."""
    with store.turn():
        # The time limit may just have ended a trial.
        requeue_lost(study, store)
    return [trial.state.name for trial in latest_tries(study)]


def _checked_study(objective: TuningObjective, store: SharedStorage) -> "Study":
    """Return the study, and refuse the study of another search."""
    import optuna

    name = objective.space.study.name
    study = optuna.create_study(
        storage=store.optuna, study_name=name, direction="maximize", load_if_exists=True
    )
    former = study.user_attrs.get(OBJECTIVE)
    if difference := former and first_difference(former, objective.config()):
        raise UsageError(
            f"storage: has a search of {name} with {difference}; choose another --storage"
        )
    return study


def _enter(objective: TuningObjective, store: SharedStorage, study: "Study") -> None:
    """Write the objective and the baseline into a new study."""
    with store.turn():
        if _checked_study(objective, store).user_attrs.get(OBJECTIVE):
            return
        params = objective.baseline_params()
        for key in objective.space.parameters.keys() - params.keys():
            log.info(f"the recipe's {key} is outside the search space; the baseline keeps it")
        study.enqueue_trial(params, user_attrs={BASELINE: True}, skip_if_exists=True)
        # This comes last, so that a call after a kill repeats the steps before it.
        study.set_user_attr(OBJECTIVE, objective.config())


def search(objective: TuningObjective, storage: Path | str, trials: int) -> bool:
    """Run the next trial, and return False if none is left. Several workers may do this at once."""

    def run_next(store: SharedStorage, study: "Study") -> bool:
        # `open_storage` ignores Optuna's warning that the Wilcoxon pruner is experimental.
        study.pruner = pruner_of(objective.space.study)
        has_run = _run_next(objective, store, study, trials)
        if has_run:
            _write_trials(study, objective)
            progress("trial", count_trials(study), trials)
        return has_run

    return _on_study(objective, storage, run_next)


def _run_next(
    objective: TuningObjective, store: SharedStorage, study: "Study", trials: int
) -> bool:
    import optuna
    from optuna.storages._heartbeat import get_heartbeat_thread

    with ExitStack() as running:
        with store.turn():
            for number in requeue_lost(study, store):
                log.info(f"trial {number} did not end; it is tried again")
            if count_trials(study) >= trials:
                return False
            if out_of_time():
                raise OutOfTime("out of time before a trial")
            trial = store.ask(study, running)
            running.enter_context(get_heartbeat_thread(trial._trial_id, store.optuna))
            number = [t.number for t in latest_tries(study)].index(trial.number)
            params = _draw(trial, number, study, objective)
        try:
            state, value = _judge(trial, number, params, objective)
            study.tell(trial, value, state, skip_if_finished=True)
        except optuna.exceptions.UpdateFinishedTrialError:
            log.info(f"trial {number}: this worker was silent for long, and another one took over")
        except BaseException:
            # This fails on a full disk.
            with suppress(Exception):
                study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            raise
    return True


def _draw(trial: "Trial", number: int, study: "Study", objective: TuningObjective) -> Parameters:
    """Choose the parameters of a trial.

    Each trial seeds the sampler. So an interrupted search draws the same values as an undisturbed
    search.
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
    """Run a trial, log it, and return its final state and its value if it is complete."""
    import optuna

    is_baseline, states = BASELINE in trial.user_attrs, optuna.trial.TrialState
    prefix = f"{objective.space.study.model}."
    texts = ((k, f"{v:.3g}" if isinstance(v, float) else v) for k, v in params.items())
    values_text = "".join(f"  {key.removeprefix(prefix)}={value}" for key, value in texts)
    try:
        recipe = objective.recipe if is_baseline else objective.recipe_with(params)
        after_fold = report_folds(trial, objective.space.study, never_prune=is_baseline)
        folder = objective.out / "trials" / str(number)
        value = objective.cross_validate(recipe, folder, after_fold)
        log.info(f"trial {number}: {value:.4f}{values_text}")
        return states.COMPLETE, value
    except optuna.TrialPruned as pruned:
        log.info(f"trial {number} {pruned}{values_text}")
        return states.PRUNED, None
    except (Exception, KeyboardInterrupt) as error:
        # A library may wrap the error that a signal raised.
        if _is_from_outside(error) or out_of_time():
            # This fails on a full disk.
            with suppress(Exception):
                trial.set_user_attr(INTERRUPTED, True)
            raise
        is_known = isinstance(error, PipelineError)
        text = str(error) if is_known else f"{type(error).__name__}: {error}"
        reason = " ".join(text.split())
        log.info(f"trial {number} failed: {reason}{values_text}")
        trial.set_user_attr(REASON, reason)
        return states.FAIL, None


def _is_from_outside(error: BaseException) -> bool:
    import optuna

    faults = optuna.exceptions.StorageInternalError | optuna.exceptions.UpdateFinishedTrialError
    outside = KeyboardInterrupt | OSError | OutOfTime | faults
    return isinstance(error, outside) or isinstance(error.__cause__, OSError)


def _write_trials(study: "Study", objective: TuningObjective) -> TuneResult | None:
    """Write trials.json, and best.toml if a trial has succeeded. Otherwise return None."""
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
    # The baseline wins a tie, and then the earliest trial.
    best = min(complete, key=lambda r: (-(r.value or 0.0), not r.is_baseline, r.number))
    recipe, path = objective.recipe, objective.out / "best.toml"
    if not best.is_baseline:
        best_recipe = objective.recipe_with(best.params)
        recipe = best_recipe.model_copy(update={"name": f"{recipe.name}-tuned"})
    write_text(path, recipe.to_toml())
    baseline = next((record.value for record in complete if record.is_baseline), None)
    return TuneResult(path, best, baseline, records)


def _result(study: "Study", objective: TuningObjective) -> TuneResult:
    result = _write_trials(study, objective)
    if result is None:
        tries = latest_tries(study)
        reasons = [trial.user_attrs[REASON] for trial in tries if REASON in trial.user_attrs]
        problem = "no trial has ended yet; the same command resumes"
        if reasons:
            problem = f"none of {len(tries)} trials succeeded; the last one: {reasons[-1]}"
        raise PipelineError(f"{objective.out}: {problem}")
    values = {trial.number: trial.value for trial in result.trials if trial.value is not None}
    model = objective.space.study.model
    write_search_page(objective.out / PAGE, model, values, importances_of(study))
    if result.best.is_baseline:
        log.info("no trial beat the recipe; best.toml is the unchanged recipe")
    return result
