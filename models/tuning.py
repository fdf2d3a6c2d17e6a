"""Search a recipe's hyper-parameters on the train split, with Optuna.

A trial is one recipe; its value is the mean metric of one model over train graphs that were held
out, whole architectures at a time. The valid and test splits are never opened. The value of the
winner is the best of many noisy ones and so too high: judge the recipe on other data.

Several workers may share a database; two that start at the very same moment may both enter the
baseline, and at the end overrun the budget by one trial each.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.atomic import write_text
from data.errors import PipelineError, UsageError
from data.fingerprint import fingerprint
from data.packing.open_tree import stored_graphs
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named
from models.folds import grouped_folds
from models.jobs import Progress
from models.recipe import Recipe
from models.run_folder import DONE, begin, mark_done, read_config
from models.search_space import Parameters, SearchSpace, suggest, value_at, with_values
from models.study_storage import REASON, count_trials, is_at_rest, open_study, quiet_optuna
from models.train_set import split_usable
from models.tune_result import BASELINE, TrialRecord, TuneResult, best_of, record_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

BEST, HISTORY, TRIALS = "best.toml", "trials.json", "trials"
OUT_OF_MEMORY = ("out of memory", "allocate memory")  # torch's words on a GPU and on a CPU


class _TrialFailedError(Exception):
    """A trial has failed through its own fault, and its reason is recorded: the study goes on."""


@dataclass(frozen=True)
class _Question:
    """What a study asks: which recipe near this one ranks these graphs best.

    `shared` are graphs of all layout collections, where some trial may begin from a shared model.
    """

    recipe: Recipe
    space: SearchSpace
    files: list[GraphFile]
    shared: list[GraphFile]
    folds: tuple[tuple[GraphFile, ...], ...]
    out: Path
    progress: Progress | None

    @property
    def table(self) -> dict[str, Any]:
        """Return the recipe as TOML values, a new table each time."""
        return self.recipe.model_dump(mode="json")

    def config(self) -> dict[str, Any]:
        """Return all that decides a trial's value, as TOML values."""
        shared = {"shared_data": fingerprint(self.shared)} if self.shared else {}
        return {
            "train_data": fingerprint(self.files),
            **shared,
            "recipe": self.table,
            "space": self.space.model_dump(mode="json", exclude_none=True),
        }

    def study_name(self) -> str:
        """Return a name that no other question has; the recipe's own name is no part of it.

        It is made of what `out` was begun with, which may be of a time before a key was added.
        """
        config = read_config(self.out)
        del config["recipe"]["name"]
        digest = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=6)
        study = self.space.study
        return f"{study.collection}:{study.model}:{digest.hexdigest()}"

    def recipe_with(self, params: Parameters) -> Recipe:
        """Return the recipe with `params` in the place of its own values."""
        return Recipe.from_table(with_values(self.table, params), source="trial")

    def baseline_params(self) -> Parameters:
        """Return the recipe's own values, as far as the search space holds them."""
        table = self.table
        own = {key: value_at(table, key) for key in self.space.parameters}
        return {k: v for k, v in own.items() if self.space.parameters[k].holds(v)}


def tune(
    recipe_table: dict[str, Any],
    space: SearchSpace,
    data_dir: Path,
    *,
    storage: Path | str,
    trials: int,
    out: Path,
    timeout_s: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Progress | None = None,
) -> TuneResult:
    """Search the space until `trials` trials have ended; the same call again resumes.

    The first trial is the recipe as it is. A trial that fails is recorded with its reason, and
    counts; one whose worker was killed or ran into a full disk is tried once more, and counts
    once. Another recipe, space or train split is another study in the storage, and needs another
    `out`.

    Args:
        recipe_table: the baseline, as `Recipe.model_dump` gives it.
        space: what may change.
        data_dir: the folder that holds npz/; only the train split of one collection is read.
        storage: a journal file's path, for one worker at a time, or a database URL for many.
        trials: the whole budget, earlier calls' trials included.
        out: holds trials/NUMBER/ (a run folder each), trials.json and best.toml.
        timeout_s: no trial is begun later than this many seconds after the call.
        say: told, in words, how each trial ended and what was left out.
        progress: told how far a training and the study are.

    Raises:
        UsageError: no budget, a recipe that does not fit, or `out` belongs to another study.
        PipelineError: damaged or too little data, a storage that cannot be opened, or not one
            trial succeeded.
    """
    started = time.monotonic()
    if trials < 1:
        raise UsageError(f"trials = {trials}: expected at least 1")
    question = _ask(recipe_table, space, data_dir, out, say=say, progress=progress)
    begin(out, question.config(), resume=True)
    kept = _trial_numbers(out)
    with quiet_optuna(), open_study(storage, question.study_name()) as study:
        _check_belongs(out, kept, study)
        _enter_baseline(study, question, say)
        while count_trials(study) < trials:
            if timeout_s is not None and time.monotonic() - started >= timeout_s:
                say(f"time is up after {count_trials(study)} of {trials} trials")
                break
            (out / DONE).unlink(missing_ok=True)
            _run_trial(study, question, say)
            _write_history(study, question)
            if progress:
                progress("tune", count_trials(study), trials)
        result = _result(study, question)
        if count_trials(study) >= trials and is_at_rest(study):
            mark_done(out)
    if result.is_baseline:
        say("no trial beat the recipe as it was; best.toml is that recipe")
    return result


def _ask(
    recipe_table: dict[str, Any],
    space: SearchSpace,
    data_dir: Path,
    out: Path,
    *,
    say: Callable[[str], None],
    progress: Progress | None,
) -> _Question:
    """Read the recipe and the train split, and cut the folds."""
    from models.shared_training import shared_steps

    recipe = Recipe.from_table(recipe_table, source="recipe")
    collection = collection_named(space.study.collection)
    model = space.study.model
    shares = shared_steps(recipe, model) or f"{model}.training.shared_steps" in space.parameters
    needed = LAYOUT_COLLECTIONS if shares else (collection,)
    files = stored_graphs(data_dir, collections=needed, splits=("train",), progress=progress)
    usable, unusable = split_usable(files)
    for graph in unusable:
        say(f"left out: {graph.file.name}: {graph.reason}")
    own = [file for file in usable if file.collection == collection]
    folds = grouped_folds(own, space.study.folds, space.study.seed)
    return _Question(recipe, space, own, usable if shares else [], folds, out, progress)


def _trial_numbers(out: Path) -> list[int]:
    folders = (out / TRIALS).glob("*")
    return sorted(int(folder.name) for folder in folders if folder.name.isdecimal())


def _check_belongs(out: Path, numbers: list[int], study: "Study") -> None:
    """Raise UsageError where `out` holds trials that the storage has never heard of."""
    unknown = [number for number in numbers if number >= len(study.get_trials(deepcopy=False))]
    if unknown:
        raise UsageError(
            f"{out / TRIALS / str(unknown[0])}: the storage knows no such trial; give the storage "
            "that the folder was begun with, or another --out"
        )


def _enter_baseline(study: "Study", question: _Question, say: Callable[[str], None]) -> None:
    """Queue the recipe as it is, once per study."""
    if any(BASELINE in trial.user_attrs for trial in study.get_trials(deepcopy=False)):
        return
    params, table = question.baseline_params(), question.table
    for key in question.space.parameters:
        if key not in params:
            own = f"{key} = {value_at(table, key)!r}"
            say(f"{own} of the recipe lies outside the search space; the baseline keeps it")
    study.enqueue_trial(params, user_attrs={BASELINE: True})


def _run_trial(study: "Study", question: _Question, say: Callable[[str], None]) -> None:
    """Run the next trial, queued or new, to its end."""
    import numpy as np
    import optuna

    # Seeded anew for each trial, so that a study that was stopped draws what an undisturbed one
    # would have drawn.
    drawn = len(study.get_trials(deepcopy=False))
    seed = np.random.SeedSequence([question.space.study.seed, drawn]).generate_state(1)[0]
    study.sampler = optuna.samplers.TPESampler(seed=int(seed))

    def objective(trial: "Trial") -> float:
        try:
            value = _value(trial, question)
        except Exception as error:
            if not _is_the_trials_fault(error, is_baseline=BASELINE in trial.user_attrs):
                raise
            reason = _one_line(error)
            trial.set_user_attr(REASON, reason)
            say(f"trial {trial.number} failed: {reason}")
            raise _TrialFailedError(reason) from error
        say(f"trial {trial.number}: {value:.4f}")
        return value

    study.optimize(objective, n_trials=1, catch=(_TrialFailedError,))


def _value(trial: "Trial", question: _Question) -> float:
    """Choose a recipe and cross-validate it in the trial's own folder."""
    from models.cross_validate import cross_validate

    space = question.space
    if BASELINE in trial.user_attrs:
        for key in question.baseline_params():
            space.parameters[key].suggest(trial, key)
        recipe = question.recipe
    else:
        recipe = question.recipe_with(suggest(trial, space))
    folder = question.out / TRIALS / str(trial.number)
    model, folds = space.study.model, question.folds
    shared, progress = question.shared, question.progress
    return cross_validate(recipe, model, folds, folder, shared=shared, progress=progress).value


def _is_the_trials_fault(error: Exception, *, is_baseline: bool) -> bool:
    """Tell a recipe that cannot be trained from a full disk, and from a defect of ours.

    Whatever a combination of values provokes is its fault; where the recipe as it was given
    provokes something that no message was written for, the fault is ours.
    """
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        return False
    return not is_baseline or isinstance(error, PipelineError) or _is_out_of_memory(error)


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in OUT_OF_MEMORY)
    )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if _is_out_of_memory(error):
        return f"out of memory: {text}".removesuffix(": ")
    return text if isinstance(error, PipelineError) else f"{type(error).__name__}: {text}"


def _write_history(study: "Study", question: _Question) -> tuple[TrialRecord, ...]:
    """Write trials.json, and best.toml if a trial has succeeded; return all trials."""
    records = tuple(record_of(trial) for trial in study.get_trials(deepcopy=False))
    rows = [asdict(record) for record in records]
    write_text(question.out / HISTORY, json.dumps(rows, indent=1, allow_nan=False))
    best = best_of(records)
    if best:
        recipe = question.recipe if best.is_baseline else question.recipe_with(best.params)
        write_text(question.out / BEST, recipe.to_toml())
    return records


def _result(study: "Study", question: _Question) -> TuneResult:
    """Write and return what has been found so far.

    Raises:
        PipelineError: no trial has succeeded.
    """
    records = _write_history(study, question)
    best = best_of(records)
    if best is None:
        reasons = [record.reason for record in records if record.reason]
        last = f"; the last one: {reasons[-1]}" if reasons else ""
        raise PipelineError(f"{question.out}: none of {len(records)} trials succeeded{last}")
    baseline = [r.value for r in records if r.is_baseline and r.value is not None]
    return TuneResult(
        study=study.study_name,
        best_recipe=question.out / BEST,
        best=best,
        baseline_value=baseline[0] if baseline else None,
        trials=records,
    )
