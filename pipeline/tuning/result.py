"""The result of a search: its trials, its finalists, and the recipe of the winner."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.files import write_text
from common.jobs.workers import Workers
from common.metrics import CONFIDENCE, family_interval
from common.progress import log
from data.families import family_of
from models.config.recipe import Recipe
from pipeline.tuning.objective import CrossValidation, Parameters, TuningObjective
from pipeline.tuning.storage import AGAIN, REASON, numbered

if TYPE_CHECKING:
    from optuna import Study

BASELINE = "baseline"  # marks the trial that is the recipe as it was given
BEST, FINALISTS = "best.toml", "finalists"
LOST = "did not come to its end: killed, interrupted, or out of disk"


@dataclass(frozen=True)
class TrialRecord:
    """One trial of a search.

    Attributes:
        state: complete, pruned, fail, running or waiting.
        value: its cross-validated metric, higher is better; None unless complete.
        params: by dotted recipe key; of the baseline, what the space holds.
        reason: why it failed or was pruned.
        again: how often its parameters were drawn again, which took its value and did not count.
    """

    number: int
    state: str
    value: float | None
    params: Parameters
    is_baseline: bool
    reason: str | None
    seconds: float | None
    again: int = 0


@dataclass(frozen=True)
class FinalSelection:
    """Which candidate the finalists' trainings chose, and why.

    Attributes:
        values: of all candidates that could be judged, by trial, then by seed.
    """

    trial: int
    values: dict[int, list[float]]
    reason: str


@dataclass(frozen=True)
class TuneResult:
    """What a search has found so far.

    Attributes:
        best: the first of `ranked`, or the trial that the selection names.
        baseline_value: what the recipe as given scored; None if that failed.
        selection: of the finalists; None where there are none, or their trainings have not ended.
    """

    best_recipe: Path
    best: TrialRecord
    baseline_value: float | None
    trials: tuple[TrialRecord, ...]
    selection: FinalSelection | None = None


def records_of(study: "Study") -> tuple[TrialRecord, ...]:
    again = Counter(t.user_attrs.get(AGAIN) for t in study.get_trials(deepcopy=False))
    return tuple(
        TrialRecord(
            number=number,
            state=(state := trial.state.name.lower()),
            value=trial.value if state == "complete" else None,
            params=dict(trial.params),
            is_baseline=BASELINE in trial.user_attrs,
            reason=str(trial.user_attrs.get(REASON, LOST)) if state in ("fail", "pruned") else None,
            seconds=trial.duration.total_seconds() if trial.duration else None,
            again=again[number],
        )
        for number, trial in numbered(study).items()
    )


def ranked(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials with a value, best first; of equals the baseline, then the earliest."""
    complete = [record for record in records if record.value is not None]
    return sorted(complete, key=lambda r: (-(r.value or 0.0), not r.is_baseline, r.number))


def write_history(study: "Study", objective: TuningObjective, chosen: int | None = None) -> None:
    """Write trials.json, and if a trial has succeeded best.toml: the chosen one's or the best's."""
    records = records_of(study)
    rows = [asdict(record) for record in records]
    write_text(objective.out / "trials.json", json.dumps(rows, indent=1, allow_nan=False))
    if ranked(records):
        best = ranked(records)[0] if chosen is None else records[chosen]
        recipe = _recipe_of(best, objective)
        name = recipe.name if best.is_baseline else f"{recipe.name}-tuned"
        write_text(objective.out / BEST, recipe.model_copy(update={"name": name}).to_toml())


def _recipe_of(record: TrialRecord, objective: TuningObjective) -> Recipe:
    return objective.recipe if record.is_baseline else objective.recipe_with(record.params)


def result_of(
    study: "Study", objective: TuningObjective, selection: FinalSelection | None
) -> TuneResult:
    """Write and return what has been found so far; the selection's choice, if there is one.

    Raises:
        PipelineError: no trial has succeeded.
    """
    write_history(study, objective, selection.trial if selection else None)
    records = records_of(study)
    if not ranked(records):
        reasons = [record.reason for record in records if record.reason not in (None, LOST)]
        why = "no trial has come to its end yet; the same command goes on"
        if reasons:
            why = f"none of {len(records)} trials succeeded; the last one: {reasons[-1]}"
        raise PipelineError(f"{objective.out}: {why}")
    best = records[selection.trial] if selection else ranked(records)[0]
    baseline = next((r.value for r in ranked(records) if r.is_baseline), None)
    if selection:
        text = json.dumps(asdict(selection), indent=1, allow_nan=False)
        write_text(objective.out / f"{FINALISTS}.json", text)
        log.info(selection.reason)
    elif best.is_baseline:
        log.info("no trial beat the recipe as it was; best.toml is that recipe")
    return TuneResult(objective.out / BEST, best, baseline, records, selection)


def train_finalist(
    objective: TuningObjective, record: TrialRecord, seed: int
) -> CrossValidation | None:
    """Cross-validate a trial's recipe with another seed, or read what is done; None if it fails."""
    folder = objective.out / FINALISTS / f"trial-{record.number}-seed-{seed}"
    recipe = _recipe_of(record, objective).model_copy(update={"seeds": (seed,)})
    try:
        return objective.cross_validate(recipe, folder)
    except PipelineError as error:
        if isinstance(error.__cause__, OSError):
            raise
        log.info(f"finalist {record.number}, seed {seed}, failed: {error}")
        return None


def candidates(records: Sequence[TrialRecord], n: int) -> list[TrialRecord]:
    """Return the n trials of the highest values, and the baseline, if it has a value at all."""
    return [r for place, r in enumerate(ranked(records)) if place < n or r.is_baseline]


def judge_finalists(
    objective: TuningObjective, records: Sequence[TrialRecord], workers: Workers
) -> FinalSelection | None:
    """Train the candidates with other seeds and choose one; None if all trainings failed.

    Raises:
        OutOfTime: the same call goes on.
    """
    study, first = objective.space.study, objective.recipe.seeds[0] + 1
    jobs = {
        record.number: [
            objective.job(
                f"finalist {record.number}, seed {seed}", train_finalist, objective, record, seed
            )
            for seed in range(first, first + study.seeds)
        ]
        for record in candidates(records, study.finalists)
    }
    n_trainings = len(jobs) * study.seeds * len(objective.folds)
    told = f"{len(jobs)} finalists, {study.seeds} other seeds and {len(objective.folds)} folds"
    log.info(f"{told} are {n_trainings} more trainings, less those that are there")
    done = workers.do([job for own in jobs.values() for job in own], objective.out)
    found = {number: [done[job.name].value for job in own] for number, own in jobs.items()}
    whole = {number: own for number, own in found.items() if None not in own}
    if not whole:
        return None
    values = {number: [result.value for result in own] for number, own in whole.items()}
    judged = [file for fold in objective.folds for file in fold]
    per_graph = {
        number: np.mean([[r.per_graph[file.name] for file in judged] for r in own], axis=0)
        for number, own in whole.items()
    }
    baseline = next((number for number in whole if records[number].is_baseline), None)
    chosen, reason = final_selection(per_graph, values, baseline, list(map(family_of, judged)))
    failed = "".join(f"; trial {n} failed with another seed" for n in found if n not in whole)
    return FinalSelection(chosen, values, reason + failed)


def final_selection(
    per_graph: Mapping[int, NDArray[np.float64]],
    values: Mapping[int, Sequence[float]],
    baseline: int | None,
    families: Sequence[str],
) -> tuple[int, str]:
    """Choose the baseline, unless the best beats it by more than noise, and say why.

    The best is that of the highest mean over seeds. Noise is the 95 % interval of the paired
    difference per graph, architectures drawn whole, the wider the more finalists the best is
    chosen from (Bonferroni).

    Args:
        per_graph: by trial (g,) the mean over seeds.
        values: by trial, one per seed.
        families: (g,) the architectures.
    """
    best = max(values, key=lambda number: (np.mean(values[number]), number == baseline, -number))
    if baseline is None:
        return best, f"trial {best} is the best finalist; the baseline could not be judged"
    if best == baseline:
        return best, "no finalist was better than the baseline"
    lead = per_graph[best] - per_graph[baseline]
    others = len(values) - 1
    low, high = family_interval(lead, families, confidence=1 - (1 - CONFIDENCE) / others)
    of_several = f", as the best of {others}" * (others > 1)
    told = f"{lead.mean():+.4f} per graph, 95 % interval {low:+.4f} to {high:+.4f}{of_several}"
    if low > 0:
        return best, f"trial {best} beats the baseline: {told}"
    return baseline, f"the baseline stays: trial {best} is not better by more than noise: {told}"
