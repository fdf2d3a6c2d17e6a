"""The objective of a search: how well a recipe ranks held-out train graphs."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from common.errors import PipelineError
from common.files import read_json, write_text
from common.jobs.run_jobs import Job
from common.metrics import ranking_score
from common.progress import log
from data.families import family_of, grouped_folds
from data.graph_store.prepare import stored_graphs
from data.graph_store.stored_graph import fingerprint, read_graph
from data.labels import split_usable
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named
from models.config.kinds import has_key
from models.config.recipe import Recipe
from models.registry import TrainJob, load_model
from models.run_folder import REPORT, begin, flat, is_done, mark_done
from models.train import sources_of, train_model
from models.training.device import network_device
from pipeline.run.jobs import check_left_out
from pipeline.tuning.space import Parameters, SearchSpace, StudyConfig, with_values
from pipeline.tuning.storage import REASON

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.trial import Trial

# p-value of the Wilcoxon pruner.
P_THRESHOLD = 0.1
# Keys of a recipe that change no trial's value.
_WITHOUT_EFFECT = {"name", "threads", "accelerator"}


@dataclass(frozen=True)
class TuningObjective:
    """The cross-validated metric of recipes on the train split. Processes can share it.

    Attributes:
        learned: Usable train graphs. They are of all layout collections if the models learn from
            all of them.
        folds: Graphs of the study's collection by fold. All graphs of a family are in one fold.
    """

    recipe: Recipe
    space: SearchSpace
    learned: list[GraphFile]
    folds: tuple[tuple[GraphFile, ...], ...]
    out: Path

    def config(self) -> dict[str, Any]:
        """Return all inputs that change a trial's value, as TOML values."""
        return {
            "train_data": fingerprint(self.learned),
            **sources_of(self.recipe, (self.space.study.model,)),
            "recipe": self.recipe.model_dump(mode="json", exclude=_WITHOUT_EFFECT),
            "space": self.space.to_table(),
        }

    def job(self, name: str, function: Callable[..., Any], *arguments: Any) -> Job:
        """Return a job of the search. All machines must see the files of this machine."""
        is_network = self.recipe.training_of(self.space.study.model) is not None
        on_gpu = is_network and network_device(self.recipe.accelerator).type == "cuda"
        return Job(name, function, arguments, threads=self.recipe.n_threads, on_gpu=on_gpu)

    def cross_validate(
        self,
        recipe: Recipe,
        folder: Path,
        after_fold: Callable[[Sequence[float]], None] = lambda values: None,
    ) -> float:
        """Train the model once per fold on the other folds, and return the mean score of the folds.

        The seed is the first of the recipe. The same call resumes after a kill.
        `after_fold` gets the values of a fold's graphs after each fold.
        """
        study = self.space.study
        config = {
            **{"model": study.model, "collection": study.collection},
            "folds": [fingerprint(fold) for fold in self.folds],
            "train_data": fingerprint(self.learned),
            "recipe": recipe.model_dump(mode="json"),
        }
        begin(folder, config, resume=True)
        if is_done(folder):
            return read_json(folder / REPORT, float, expected="the value of a cross-validation")
        means = []
        for number, held_out in enumerate(self.folds):
            values = self._fold_values(recipe, held_out, folder / f"fold-{number}")
            means.append(float(np.mean(values)))
            after_fold(values)
        value = float(np.mean(means))
        write_text(folder / REPORT, json.dumps(value, allow_nan=False))
        mark_done(folder)
        return value

    def _fold_values(
        self, recipe: Recipe, held_out: Sequence[GraphFile], folder: Path
    ) -> list[float]:
        """Train without the held-out families, and return the metric of each held-out graph."""
        study, families = self.space.study, set(map(family_of, held_out))
        files = [file for file in self.learned if family_of(file) not in families]
        place = recipe.learned_as(collection_named(study.collection))
        settings = recipe.of(place).fits(study.model)[0]
        job = TrainJob(study.model, settings, files, recipe.seeds[0], folder)
        train_model(job, place, resume=True)
        ranker, values = load_model(folder, recipe.trust), []
        # Only one graph at a time is in memory.
        for graph in map(read_graph, held_out):
            scores = ranker.score(graph)
            if scores is None:
                raise PipelineError(
                    f"{study.model}: ranks no graph of a held-out family, so it cannot be tuned by "
                    "families; expected another model"
                )
            value = ranking_score(study.kind, scores, graph.runtime, as_submitted=True)
            if not math.isfinite(value):
                raise PipelineError(f"{graph.file.path}: a config's score is not finite")
            values.append(value)
        return values

    def recipe_with(self, params: Parameters) -> Recipe:
        keys = self.recipe.collection.get(self.space.study.collection, {})
        above = f'collection."{self.space.study.collection}".'
        params = {above * has_key(keys, key) + key: value for key, value in params.items()}
        table = with_values(self.recipe.model_dump(mode="json"), params)
        return Recipe.from_table(table, source="trial", trust=self.recipe.trust)

    def baseline_params(self) -> Parameters:
        """Return the values of the recipe that are in the search space."""
        recipe = self.recipe.of(collection_named(self.space.study.collection))
        values = dict(flat(recipe.model_dump(mode="json")))
        parameters = self.space.parameters.items()
        return {key: values[key] for key, p in parameters if p.is_allowed(values.get(key))}


def tuning_objective(
    recipe: Recipe, space: SearchSpace, data_dir: Path, out: Path
) -> TuningObjective:
    """Read the train split and return the objective with its folds."""
    collection = collection_named(space.study.collection)
    is_one = recipe.learned_as(collection) == collection
    places = (collection,) if is_one else LAYOUT_COLLECTIONS
    files = stored_graphs(data_dir, collections=places, splits=("train",))
    check_left_out(recipe.fits()[0], files, places)
    usable, unusable = split_usable(files, recipe.leave_out)
    for graph in unusable:
        log.info(f"left out: {graph.file.name}: {graph.reason}")
    in_study = [file for file in usable if file.collection == collection]
    folds = grouped_folds(in_study, space.study.folds, space.study.seed)
    train_files = [file for fold in folds for file in fold] if is_one else usable
    return TuningObjective(recipe, space, train_files, folds, out)


def pruner_of(study: StudyConfig) -> "BasePruner":
    """Return Optuna's pruner of a study."""
    from optuna import pruners

    is_none = study.pruner == "none"
    return pruners.NopPruner() if is_none else pruners.WilcoxonPruner(p_threshold=P_THRESHOLD)


def report_folds(
    trial: "Trial", study: StudyConfig, *, never_prune: bool
) -> Callable[[Sequence[float]], None]:
    """Return a function that reports the values of each fold's graphs to a trial."""
    folds: list[Sequence[float]] = []

    def after_fold(values: Sequence[float]) -> None:
        import optuna

        for step, value in enumerate(values, start=sum(map(len, folds))):
            trial.report(value, step)
        folds.append(values)
        if not never_prune and len(folds) < study.folds and trial.should_prune():
            mean = np.mean([np.mean(fold) for fold in folds])
            reason = f"pruned after {len(folds)} of {study.folds} folds, mean so far {mean:.4f}"
            trial.set_user_attr(REASON, reason)
            raise optuna.TrialPruned(reason)

    return after_fold
