"""What a search asks: what it may change, and how well a recipe ranks held-out train graphs.

What it may change is read from files such as configs/tune/cpu.toml. Ranges whose ends are whole
numbers give whole numbers.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from common.errors import PipelineError, UsageError
from common.files import write_text
from common.jobs.run_jobs import Job
from common.json_files import read_json
from common.metrics import ranking_score
from common.progress import log
from common.settings import CONFIGS, FrozenConfig, read_toml, recipe_path, set_value
from data.families import family_of, grouped_folds
from data.graph_store.prepare import stored_graphs
from data.graph_store.stored_graph import fingerprint, read_graph
from data.graphs.graph import Graph
from data.labels import split_usable
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named
from ensembles.blend import apply_blend, recipe_blend
from ensembles.scores import scores_by_graph
from models.config.recipe import Recipe
from models.predict import read_scores
from models.registry import MODELS, Ranker, TrainJob, load_model
from models.run_folder import REPORT, begin, flat, is_done, mark_done
from models.train import sources_of, train_model
from models.training.device import network_device
from pipeline.tuning.storage import REASON

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.trial import Trial

BLEND, STUDY = "blend", "study"

Number = StrictInt | StrictFloat
Value = StrictBool | StrictInt | StrictFloat | StrictStr
Parameters = dict[str, Value]
P_THRESHOLD = 0.1  # of the Wilcoxon pruner
# Of a recipe, what no training of one model reads, as it does not other models' tables.
_NOT_LEARNED_FROM = {"name", "seeds", "layout", "tile", "blend"}
_NOT_ASKED = {"name", "threads", "accelerator"}  # of a recipe: they change no trial's value


class StudyConfig(FrozenConfig):
    """What a trial is judged by: a model or a blend, cross-validated on a train split.

    Attributes:
        model: its name in the recipe; or "blend": all models by which the recipe ranks the
            collection's kind, a seed each, blended as the recipe says.
        folds: of whole architectures; each is held out once.
        seed: of the folds and of the search; the training's is the recipe's first.
        pruner: gives a trial up after a fold. "hyperband" compares the mean of its folds so far
            with other trials'; "wilcoxon" its graphs so far with the best trial's, one by one.
        finalists: so many of the best trials, and the baseline, are trained again with `seeds`
            other seeds; 0 = the best trial wins.
    """

    collection: str
    model: str
    folds: Annotated[int, Field(ge=2)] = 2
    seed: Annotated[int, Field(ge=0)] = 0
    pruner: Literal["none", "hyperband", "wilcoxon"] = "none"
    finalists: Annotated[int, Field(ge=0)] = 0
    seeds: Annotated[int, Field(ge=1)] = 3

    @property
    def kind(self) -> str:
        return collection_named(self.collection).kind

    @property
    def name(self) -> str:
        return f"{self.collection}:{self.model}"

    def models(self, recipe: Recipe) -> tuple[str, ...]:
        return recipe.models_of(self.kind) if self.model == BLEND else (self.model,)


class Parameter(FrozenConfig):
    """One of `choices`, or a number from `low` to `high`, both included.

    Attributes:
        log: draw its logarithm evenly; for what acts by factors, such as a learning rate.
    """

    choices: tuple[Value, ...] = ()
    low: Number = 0
    high: Number = 0
    log: StrictBool = False

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        given, low, high = self.model_fields_set, self.low, self.high
        if not (given == {"choices"} and self.choices) and given - {"log"} != {"low", "high"}:
            raise ValueError("expected choices, or low and high")
        if high < low or (self.log and low <= 0):
            raise ValueError(f"{low} to {high}: expected low <= high, and for log above 0")
        return self

    @property
    def _is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def examples(self) -> tuple[Value, ...]:
        """Return values that a recipe takes if it takes all."""
        between = () if self._is_whole else (self.low + (self.high - self.low) / 3,)
        return self.choices or (self.low, self.high, *between)

    def holds(self, value: Any) -> bool:
        """Tell whether `value` can be drawn; true is not 1."""
        if self.choices:
            return any(value == own and type(value) is type(own) for own in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and not (self._is_whole and value % 1)

    def suggest(self, trial: "Trial", key: str) -> Value:
        """Let an Optuna trial choose."""
        if self.choices:
            chosen: Value = trial.suggest_categorical(key, self.choices)
            return chosen
        if self._is_whole:
            return trial.suggest_int(key, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(key, self.low, self.high, log=self.log)


class SearchSpace(FrozenConfig):
    """A study, and the values that its parameters may have, by dotted recipe key."""

    study: StudyConfig
    parameters: Annotated[dict[str, Parameter], Field(min_length=1)]

    def decisive(self) -> dict[str, Any]:
        """Return what decides the trials, as TOML values; finalists may still be asked for."""
        study = self.study.model_dump(mode="json", exclude={"finalists", "seeds"})
        own = {k: p.model_dump(mode="json", exclude_unset=True) for k, p in self.parameters.items()}
        return {STUDY: study, **own}


def load_space(name_or_file: str, recipe: Recipe | None = None) -> SearchSpace:
    """Read a search space: a path that ends in .toml, or the name of one in configs/tune/.

    Raises:
        PipelineError: no such search space, or no TOML, or as `space_from_table`.
    """
    path = recipe_path(name_or_file, folder=CONFIGS / "tune", what="search space")
    return space_from_table(read_toml(path, UsageError), recipe, source=str(path))


def space_from_table(
    table: Mapping[str, Any], recipe: Recipe | None = None, *, source: str
) -> SearchSpace:
    """Check a search space, and that all its values make a recipe.

    Raises:
        UsageError: an unknown key here or in the recipe, a value that the recipe refuses, or a
            key that the study's model does not read.
    """
    for key, _ in flat({k: v for k, v in table.items() if k != STUDY}):
        name = key.rpartition(".")[0]
        if "." in name and not {key, name} & table.keys():
            raise UsageError(f'{source}: a key in quotes is expected: ["{name}"], not [{name}]')
    whole = {STUDY: table.get(STUDY, {}), "parameters": {k: table[k] for k in table if k != STUDY}}
    space = SearchSpace.from_table(whole, source=source)
    study, recipe = space.study, recipe or Recipe()
    known = (*recipe.models_of(study.kind), BLEND)
    if study.model not in known:
        raise UsageError(
            f"{source}: key 'study.model' is '{study.model}': recipe {recipe.name} ranks "
            f"{study.kind} configs by {', '.join(known[:-1])} (or '{BLEND}', all of them); others, "
            f"your own too, are named by --set '{study.kind}.models=[…]'"
        )
    read = ("features", *study.models(recipe), *([BLEND] if study.model == BLEND else []))
    own = recipe.model_dump(mode="json")
    for key, parameter in space.parameters.items():
        is_read = key.split(".")[0] in read and not recipe.is_idle(key)
        if not is_read or key == "blend.choose":
            raise UsageError(
                f"{source}: '{key}' has no effect; trials of '{study.model}' read "
                + ", ".join(f"{table}.…" for table in read)
            )
        for value in parameter.examples():
            Recipe.from_table(with_values(own, {key: value}), source=source, trust=recipe.trust)
    return space


def with_values(table: Mapping[str, Any], values: Mapping[str, Value]) -> dict[str, Any]:
    """Return a copy of a recipe's table with the value of each dotted key set."""
    result = deepcopy(dict(table))
    for key, value in values.items():
        set_value(result, key, value, source=f"search space: key '{key}'")
    return result


def value_at(table: Mapping[str, Any], key: str) -> Any:
    """Return what a recipe's table says at a dotted key; 1 for a blend's weight it leaves out."""
    value: Any = table
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return 1.0 if value is None and key.startswith("blend.weights.") else value


@dataclass(frozen=True)
class CrossValidation:
    """Kendall's tau, or the tile score, of held-out graphs: by graph, per fold, and their mean."""

    value: float
    folds: list[float]
    per_graph: dict[str, float]


@dataclass(frozen=True)
class TuningObjective:
    """Which recipe near this one ranks these graphs best; can be handed to another process.

    Attributes:
        learned: the train graphs that can be learned from; of all layout collections, where models
            learn from all.
        folds: those of the study's collection, whole families each.
    """

    recipe: Recipe
    space: SearchSpace
    learned: list[GraphFile]
    folds: tuple[tuple[GraphFile, ...], ...]
    out: Path

    def config(self) -> dict[str, Any]:
        """Return all that decides a trial's value, as TOML values."""
        return {
            "train_data": fingerprint(self.learned),
            **sources_of(self.recipe, self.space.study.models(self.recipe)),
            "recipe": self.recipe.model_dump(mode="json", exclude=_NOT_ASKED),
            "space": self.space.decisive(),
        }

    def job(self, name: str, function: Callable[..., Any], *arguments: Any) -> Job:
        """Return a piece of the search as a job; all machines must see the files of this one."""
        networks = filter(self.recipe.training_of, self.space.study.models(self.recipe))
        on_gpu = network_device(self.recipe.accelerator).type == "cuda" and any(networks)
        return Job(name, function, arguments, threads=self.recipe.n_threads, on_gpu=on_gpu)

    def cross_validate(
        self,
        recipe: Recipe,
        folder: Path,
        after_fold: Callable[[Mapping[str, float]], None] = lambda values: None,
    ) -> CrossValidation:
        """Train the model once per fold on the other folds' graphs, and judge it on the fold's.

        Of "blend", the recipe's models of the collection's kind are trained and judged together.
        The seed is the recipe's first. Goes on with what a killed call has left in the folder.

        Args:
            after_fold: told each fold's value per graph.

        Raises:
            PipelineError: the folder is another recipe's, or a score is not finite, or as
                `train_model`.
            OutOfTime: as `train_model`.
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
            return read_json(folder / REPORT, CrossValidation, expected="a cross-validation")
        per_graph: dict[str, float] = {}
        means = []
        for number, held_out in enumerate(self.folds):
            families = set(map(family_of, held_out))
            learned = [file for file in self.learned if family_of(file) not in families]
            score = self._scorer(recipe, learned, held_out, folder / f"fold-{number}")
            values = {}
            for graph in map(read_graph, held_out):  # one in memory at a time
                value = ranking_score(study.kind, score(graph), graph.runtime, as_submitted=True)
                if not math.isfinite(value):
                    raise PipelineError(f"{graph.file.path}: a config's score is not finite")
                values[graph.file.name] = value
            means.append(float(np.mean(list(values.values()))))
            per_graph |= values
            after_fold(values)
        result = CrossValidation(float(np.mean(means)), means, per_graph)
        write_text(folder / REPORT, json.dumps(asdict(result), indent=1, allow_nan=False))
        mark_done(folder)
        return result

    def _scorer(
        self, recipe: Recipe, learned: list[GraphFile], held_out: Sequence[GraphFile], folder: Path
    ) -> Callable[[Graph], NDArray[np.float32]]:
        """Return what scores the configs (c,) of a held-out graph."""
        study, seed = self.space.study, recipe.seeds[0]
        collection = collection_named(study.collection)

        def trained(job: TrainJob) -> Ranker:
            train_model(job, recipe.learned_as(collection), resume=True)
            return load_model(job.run_dir, job.recipe.trust)

        if study.model != BLEND:
            return trained(TrainJob(study.model, recipe, learned, seed, folder)).score
        tables: dict[str, pl.DataFrame] = {}
        for model in recipe.models_of(study.kind):
            name = f"{model}-seed{seed}"
            job = TrainJob(model, recipe, learned, seed, folder / name)
            # What a trial alike may have left.
            path = self.out / "member-scores" / f"{name}-{_digest(job, held_out)}.parquet"
            if not path.exists():
                ranker = trained(job)  # before it is said that it predicts
                make = {path: lambda ranker=ranker: ranker}
                scores_by_graph(make, held_out, what=f"predict held-out graphs by {model}")
            tables[name] = read_scores(path)
        blended = apply_blend(tables, recipe_blend(recipe.blend, list(tables)))
        parts = blended.partition_by("graph", as_dict=True, maintain_order=True)
        return lambda graph: parts[graph.file.name,]["score"].to_numpy()

    def recipe_with(self, params: Parameters) -> Recipe:
        table = with_values(self.recipe.model_dump(mode="json"), params)
        return Recipe.from_table(table, source="trial", trust=self.recipe.trust)

    def decisive(self, params: Parameters) -> Parameters:
        """Return what tells a trial's value: what it sets or the recipe has, by key of the space.

        Keys of a model that a blend gives no weight decide nothing.
        """
        values = self._own_values() | params
        idle = {f"blend.weights.{model}": f"{model}." for model in self.recipe.all_models}
        without = tuple(own for key, own in idle.items() if values.get(key) == 0)
        return {key: value for key, value in values.items() if not key.startswith(without)}

    def _own_values(self) -> Parameters:
        table = self.recipe.model_dump(mode="json")
        return {key: value_at(table, key) for key in self.space.parameters}

    def baseline_params(self) -> Parameters:
        """Return the recipe's own values, as far as the search space holds them."""
        return {k: v for k, v in self._own_values().items() if self.space.parameters[k].holds(v)}


def tuning_objective(
    recipe: Recipe, space: SearchSpace, data_dir: Path, out: Path
) -> TuningObjective:
    """Read the train split, and cut the folds.

    Raises:
        PipelineError: damaged or too little data.
    """
    collection = collection_named(space.study.collection)
    is_one = recipe.learned_as(collection) == collection
    needed = (collection,) if is_one else LAYOUT_COLLECTIONS
    files = stored_graphs(data_dir, collections=needed, splits=("train",))
    usable, unusable = split_usable(files)
    for graph in unusable:
        log.info(f"left out: {graph.file.name}: {graph.reason}")
    own = [file for file in usable if file.collection == collection]
    folds = grouped_folds(own, space.study.folds, space.study.seed)
    learned = [file for fold in folds for file in fold] if is_one else usable
    return TuningObjective(recipe, space, learned, folds, out)


def _digest(job: TrainJob, held_out: Sequence[GraphFile]) -> str:
    """Return what tells trainings apart whose scores of held-out graphs differ."""
    others = {*MODELS, *job.recipe.own_models} - {job.model}
    decisive = {
        "recipe": job.recipe.model_dump(mode="json", exclude=others | _NOT_LEARNED_FROM),
        "train_data": fingerprint(job.files),
        "held_out": fingerprint(held_out),
    }
    text = json.dumps(decisive, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def pruner_of(study: StudyConfig) -> "BasePruner":
    from optuna import pruners

    if study.pruner == "hyperband":
        return pruners.HyperbandPruner(1, study.folds, reduction_factor=2)
    is_none = study.pruner == "none"
    return pruners.NopPruner() if is_none else pruners.WilcoxonPruner(p_threshold=P_THRESHOLD)


def give_up_or_go_on(
    trial: "Trial", study: StudyConfig, *, never: bool
) -> Callable[[Mapping[str, float]], None]:
    """Return what is to be called after each fold: it reports, and unless `never`, may give up.

    The Wilcoxon pruner is told of each graph, others of the mean of the folds so far.

    Raises:
        TrialPruned: by what is returned.
    """
    folds: list[list[float]] = []

    def after_fold(values: Mapping[str, float]) -> None:
        import optuna

        before = sum(map(len, folds))
        folds.append(list(values.values()))
        mean = float(np.mean([np.mean(fold) for fold in folds]))
        if study.pruner == "wilcoxon":
            for step, value in enumerate(folds[-1], start=before):
                trial.report(value, step)
        else:
            trial.report(mean, len(folds))
        if not never and len(folds) < study.folds and trial.should_prune():
            reason = f"pruned after {len(folds)} of {study.folds} folds, mean so far {mean:.4f}"
            trial.set_user_attr(REASON, reason)
            raise optuna.TrialPruned(reason)

    return after_fold
