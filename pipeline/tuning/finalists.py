"""The best few of a search, trained again with other seeds: which one is really the best.

The best of many noisy trials owes part of its value to luck, and to the one seed that all trials
share. So the best few and the recipe as it was given are cross-validated again on the same folds
with other seeds, as a study of its own in the same storage, which any worker may help with.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from models.config.recipe import Recipe
from models.training.folds import family_of
from models.training.jobs import Progress
from pipeline.tuning.cross_validate import cross_validate
from pipeline.tuning.question import Question
from pipeline.tuning.result import FinalRecord, TrialRecord, Verdict, record_of
from pipeline.tuning.storage.claims import count_entered
from pipeline.tuning.storage.storage import SharedStorage
from pipeline.tuning.worker import Work

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

FINALISTS = "finalists"  # the folder below OUT, and the study's suffix
CANDIDATE, SEED, PER_GRAPH = "candidate", "seed", "per_graph"


def finals_study(question: Question, shared: SharedStorage) -> "Study":
    """Open or begin the study of the finalists."""
    return shared.study(f"{question.study_name()}:{FINALISTS}")


def finals_work(
    study: "Study", search: "Study", question: Question, progress: Progress | None
) -> Work:
    """Return what the trials of the finalists' study are: a candidate with a seed each."""
    return Work(
        study=study,
        enter=partial(_enter, study, search, question),
        choose=partial(_choose, search=search, question=question),
        judge=partial(_judge, question=question, progress=progress),
        is_given=lambda trial: False,
        budget=partial(count_entered, study),
        called="final",
    )


def candidates(records: Sequence[TrialRecord], n: int) -> list[TrialRecord]:
    """Return the n trials of the highest values, and the baseline, if it has a value at all."""
    complete = [record for record in records if record.value is not None]
    ranked = sorted(complete, key=lambda r: (-(r.value or 0.0), not r.is_baseline, r.number))
    return ranked[:n] + [record for record in ranked[n:] if record.is_baseline]


def _records(study: "Study") -> list[TrialRecord]:
    return [record_of(trial) for trial in study.get_trials(deepcopy=False)]


def _seeds(question: Question) -> range:
    """Return seeds that the search has not trained with."""
    first = question.recipe.seeds[0] + 1
    return range(first, first + question.space.study.seeds)


def _enter(study: "Study", search: "Study", question: Question) -> None:
    """Queue each candidate with each seed, once."""
    known = {_task(trial) for trial in study.get_trials(deepcopy=False)}
    for record in candidates(_records(search), question.space.study.finalists):
        for seed in _seeds(question):
            if (record.number, seed) not in known:
                study.enqueue_trial({}, user_attrs={CANDIDATE: record.number, SEED: seed})


def _task(trial: "Trial | FrozenTrial") -> tuple[int, int]:
    return trial.user_attrs[CANDIDATE], trial.user_attrs[SEED]


def _choose(trial: "Trial", search: "Study", question: Question) -> Recipe:
    number, seed = _task(trial)
    record = record_of(search.get_trials(deepcopy=False)[number])
    recipe = question.recipe if record.is_baseline else question.recipe_with(record.params)
    return recipe.model_copy(update={"seeds": (seed,)})


def _judge(
    trial: "Trial", recipe: object, question: Question, progress: Progress | None
) -> tuple[float, ...]:
    assert isinstance(recipe, Recipe)
    result = cross_validate(
        recipe,
        question.space.study.model,
        question.folds,
        question.out / FINALISTS / str(trial.number),
        shared=question.shared,
        kept_scores=question.kept_scores,
        progress=progress,
    )
    trial.set_user_attr(PER_GRAPH, result.per_graph)
    return (result.value,)


def judge_finalists(study: "Study", search: "Study", question: Question) -> Verdict | None:
    """Choose among the finalists: the baseline, unless the best beats it by more than noise.

    The best is that of the highest mean over seeds. Noise is the 95 % interval of the paired
    difference, per graph the mean over seeds, architectures drawn whole.

    Returns:
        None while trainings are missing.
    """
    trials = study.get_trials(deepcopy=False)
    finals, failed = [], []
    for record in candidates(_records(search), question.space.study.finalists):
        own = [trial for trial in trials if _task(trial)[0] == record.number]
        if len({_task(trial)[1] for trial in own if trial.state.is_finished()}) < len(
            _seeds(question)
        ) or not all(trial.state.is_finished() for trial in own):
            return None
        done = {_task(t)[1]: t for t in own if t.state.name == "COMPLETE"}
        if set(_seeds(question)) <= set(done):
            finals.append(_final(record, [done[seed] for seed in _seeds(question)]))
        else:
            failed.append(record)
    if not finals:
        return None
    return _verdict(finals, {file.name: family_of(file) for file in question.files}, failed)


def _final(record: TrialRecord, trials: Sequence["FrozenTrial"]) -> FinalRecord:
    """Average one candidate over its seeds."""
    graphs = trials[0].user_attrs[PER_GRAPH]
    return FinalRecord(
        trial=record.number,
        is_baseline=record.is_baseline,
        values=tuple(trial.values[0] for trial in trials),
        per_graph={
            name: float(np.mean([trial.user_attrs[PER_GRAPH][name] for trial in trials]))
            for name in graphs
        },
    )


def _verdict(
    finals: Sequence[FinalRecord], families: dict[str, str], failed: Sequence[TrialRecord]
) -> Verdict:
    from common.bootstrap import family_interval

    best = max(finals, key=lambda final: (final.value, final.is_baseline, -final.trial))
    baseline = next((final for final in finals if final.is_baseline), None)
    left_out = "".join(f"; trial {record.number} failed with another seed" for record in failed)
    if baseline is None:
        reason = f"trial {best.trial} is the best finalist; the baseline could not be judged"
        return Verdict(best.trial, tuple(finals), None, reason + left_out)
    if best is baseline:
        reason = "no finalist was better than the baseline"
        return Verdict(best.trial, tuple(finals), None, reason + left_out)
    names = sorted(best.per_graph)
    difference = np.array([best.per_graph[n] - baseline.per_graph[n] for n in names])
    interval = family_interval(difference, [families[name] for name in names])
    ends = f"{interval[0]:+.4f} to {interval[1]:+.4f}"
    told = f"{difference.mean():+.4f} per graph, 95 % interval {ends}"
    if interval[0] > 0:
        reason = f"trial {best.trial} beats the baseline: {told}"
        return Verdict(best.trial, tuple(finals), interval, reason + left_out)
    reason = f"the baseline stays: trial {best.trial} is not better by more than noise: {told}"
    return Verdict(baseline.trial, tuple(finals), interval, reason + left_out)
