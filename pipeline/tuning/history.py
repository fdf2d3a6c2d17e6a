"""What a study leaves in its folder: all trials, and the winner's recipe."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from common.atomic import write_text
from common.errors import PipelineError
from pipeline.tuning.question import Question
from pipeline.tuning.result import TrialRecord, TuneResult, Verdict, best_of, record_of
from pipeline.tuning.storage.claims import LOST

if TYPE_CHECKING:
    from optuna import Study

NOT_COMPARED = "not compared with the recipe as it was given, which has no value"
BEST, HISTORY, FINALS = "best.toml", "trials.json", "finalists.json"


def write_history(study: "Study", question: Question) -> tuple[TrialRecord, ...]:
    """Write trials.json, and best.toml if a trial has succeeded; return all trials.

    Under claims only: of two workers, the one that wrote last would else not know the newest trial.
    """
    records = tuple(record_of(trial) for trial in study.get_trials(deepcopy=False))
    rows = [asdict(record) for record in records]
    write_text(question.out / HISTORY, json.dumps(rows, indent=1, allow_nan=False))
    best = best_of(records)
    if best:
        compared = any(r.is_baseline and r.value is not None for r in records)
        _write_best(best, question, compared=compared)
    return records


def _write_best(best: TrialRecord, question: Question, *, compared: bool) -> None:
    recipe = question.recipe if best.is_baseline else question.recipe_with(best.params)
    remark = "" if compared else f"# Trial {best.number}: {NOT_COMPARED}.\n"
    write_text(question.out / BEST, remark + recipe.to_toml())


def result_of(study: "Study", question: Question, verdict: Verdict | None = None) -> TuneResult:
    """Write and return what has been found so far; the verdict's choice, if there is one.

    Under claims only.

    Raises:
        PipelineError: no trial has succeeded, or time was up before one could.
    """
    records = write_history(study, question)
    best = best_of(records)
    if best is None:
        unfinished = {record.state for record in records} & {"waiting", "running"}
        if not records or (unfinished and all(r.reason in (None, LOST) for r in records)):
            raise PipelineError(
                f"{question.out}: time was up before the first trial ended; the same command goes "
                "on"
            )
        reasons = [record.reason for record in records if record.reason]
        last = f"; the last one: {reasons[-1]}" if reasons else ""
        raise PipelineError(f"{question.out}: none of {len(records)} trials succeeded{last}")
    if verdict:
        best = records[verdict.trial]
        compared = any(final.is_baseline for final in verdict.finals)
        _write_best(best, question, compared=compared)
        text = json.dumps(asdict(verdict), indent=1, allow_nan=False)
        write_text(question.out / FINALS, text)
    baseline = [r.value for r in records if r.is_baseline and r.value is not None]
    return TuneResult(
        study=study.study_name,
        best_recipe=question.out / BEST,
        best=best,
        baseline_value=baseline[0] if baseline else None,
        trials=records,
        verdict=verdict,
    )
