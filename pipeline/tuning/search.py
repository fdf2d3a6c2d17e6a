"""The search: the recipe as it is, then what Optuna proposes; finalists in the end."""

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from models.config.recipe import Recipe
from models.training.jobs import Progress
from pipeline.tuning.cross_validate import cross_validate
from pipeline.tuning.finalists import finals_study, finals_work
from pipeline.tuning.history import write_history
from pipeline.tuning.judged_models import judged_models
from pipeline.tuning.objectives import directions, values_of
from pipeline.tuning.pruning import give_up_or_go_on, pruner_of
from pipeline.tuning.question import TRIALS, Question
from pipeline.tuning.result import BASELINE
from pipeline.tuning.space import suggest
from pipeline.tuning.storage.claims import count_trials, is_at_rest
from pipeline.tuning.storage.storage import SharedStorage
from pipeline.tuning.warm_up import warm_up
from pipeline.tuning.worker import DEADLINE, Say, Work, run_trials

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial


@dataclass(frozen=True)
class Budget:
    """What all workers of a study share.

    Attributes:
        trials: at most so many, those of earlier calls included.
        deadline: of time.time(); no trial is begun later.
    """

    trials: int
    deadline: float | None


def search_study(question: Question, shared: SharedStorage) -> "Study":
    """Open or begin the question's study."""
    study = question.space.study
    return shared.study(question.study_name(), directions(study.objectives), pruner_of(study))


def work_on(
    question: Question,
    shared: SharedStorage,
    budget: Budget,
    *,
    say: Say,
    progress: Progress | None,
    training_progress: Progress | None = None,
) -> None:
    """Be one of a study's workers, until the budget is used up or the time is.

    Args:
        progress: told how far the study is.
        training_progress: told how far a training is.
    """
    study = search_study(question, shared)
    asked = question.space.study
    if asked.objectives != "score" and count_trials(study) < budget.trials:
        kind = asked.collection.split(":", 1)[0]
        for model in judged_models(question.recipe, asked.model, kind):
            warm_up(question.recipe, model, question.folds)
    run_trials(
        search_work(study, question, budget.trials, say, training_progress),
        question,
        shared,
        deadline=budget.deadline,
        after_trial=lambda: write_history(study, question),
        say=say,
        progress=progress,
    )
    ended = count_trials(study) >= budget.trials and is_at_rest(study)
    if ended and question.space.study.finalists:
        finals = finals_study(question, shared)
        run_trials(
            finals_work(finals, study, question, training_progress),
            question,
            shared,
            deadline=budget.deadline,
            after_trial=lambda: None,
            say=say,
            progress=progress,
        )


def search_work(
    study: "Study", question: Question, trials: int, say: Say, progress: Progress | None
) -> Work:
    """Return what the search's trials are."""
    return Work(
        study=study,
        enter=partial(_enter_baseline, study, question, say),
        choose=partial(_choose, question=question),
        judge=partial(_judge, question=question, progress=progress),
        is_given=_is_baseline,
        budget=lambda: trials,
    )


def join(study: "Study", shared: SharedStorage, timeout_s: float | None) -> float | None:
    """Begin a search, or join one that is running and share its deadline; return the deadline.

    A deadline that is over belongs to an earlier search, whatever of it may be running still.
    """
    deadline = None if timeout_s is None else time.time() + timeout_s
    with shared.claims():
        known = study.user_attrs.get(DEADLINE)
        running = any(trial.state.name == "RUNNING" for trial in study.get_trials(deepcopy=False))
        if running and known is not None and known > time.time():
            deadline = known if deadline is None else min(deadline, known)
        if deadline != known:
            study.set_user_attr(DEADLINE, deadline)
    return deadline


def _enter_baseline(study: "Study", question: Question, say: Say) -> None:
    """Queue the recipe as it is, once per study."""
    if any(BASELINE in trial.user_attrs for trial in study.get_trials(deepcopy=False)):
        return
    for own in question.outside():
        say(f"{own} of the recipe lies outside the search space; the baseline keeps it")
    study.enqueue_trial(question.baseline_params(), user_attrs={BASELINE: True})


def _is_baseline(trial: "Trial") -> bool:
    return BASELINE in trial.user_attrs


def _choose(trial: "Trial", question: Question) -> Recipe:
    """Let a trial choose a recipe."""
    space = question.space
    if not _is_baseline(trial):
        return question.recipe_with(suggest(trial, space))
    for key in question.baseline_params():
        space.parameters[key].suggest(trial, key)
    return question.recipe


def _judge(
    trial: "Trial", recipe: object, question: Question, progress: Progress | None
) -> tuple[float, ...]:
    """Cross-validate a recipe in the trial's own folder."""
    assert isinstance(recipe, Recipe)
    study = question.space.study
    result = cross_validate(
        recipe,
        study.model,
        question.folds,
        question.out / TRIALS / str(trial.number),
        shared=question.shared,
        kept_scores=question.kept_scores,
        progress=progress,
        after_fold=give_up_or_go_on(trial, study, never=_is_baseline(trial)),
    )
    return values_of(study.objectives, result)
