"""What a trial is worth: how well a recipe ranks train graphs that it has not learned from."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.atomic import write_text
from common.errors import PipelineError
from common.metrics import kendall_tau, tile_score
from data.graph_store.stored_graph import fingerprint
from data.graphs.graph import Graph, TileGraph
from data.read import read_graph
from data.tree import GraphFile
from models.config.recipe import Recipe
from models.predict import cached_scores, predict
from models.registry import MODELS
from models.run_folder import begin, mark_done
from models.train import load_model, train_model
from models.training.folds import family_of
from models.training.jobs import SHARED_FOLDER, Ranker, TrainJob, pretrain_steps, shared_model
from pipeline.tuning.space import BLEND, StudyConfig
from pipeline.tuning.storage import REASON

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.trial import Trial

REPORT = "report.json"
P_THRESHOLD = 0.1  # of the Wilcoxon pruner
# Of a recipe, what no training of one model reads; other models' tables are left out as well.
_NOT_LEARNED_FROM = {"name", "seeds", "layout", "tile", "blend"}


@dataclass(frozen=True)
class CrossValidation:
    """What a model scored on held-out graphs; higher is better.

    Attributes:
        metric: "kendall_tau" or "tile_score".
        value: mean over the folds.
        folds: per fold, the mean over its held-out graphs.
        per_graph: by graph name.
    """

    metric: str
    value: float
    folds: tuple[float, ...]
    per_graph: dict[str, float]


@dataclass(frozen=True)
class ScoredRanker:
    """A model of which only its scores are kept, of some graphs.

    Attributes:
        scores: (c,) float32 by graph name.
    """

    scores: Mapping[str, NDArray[np.float32]]

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Return the graph's scores; (c,) float32, lower = faster."""
        return self.scores[graph.file.name]


@dataclass(frozen=True)
class _Fold:
    learned: Sequence[GraphFile]
    held_out: Sequence[GraphFile]
    shared: Sequence[GraphFile]
    folder: Path
    shared_folder: Path
    kept_scores: Path | None


def judged_models(recipe: Recipe, model: str, kind: str) -> tuple[str, ...]:
    """Return the models that a trial trains: `model`, or for "blend" the recipe's of `kind`."""
    return recipe.models_of(kind) if model == BLEND else (model,)


def cross_validate(
    recipe: Recipe,
    model: str,
    folds: Sequence[Sequence[GraphFile]],
    run_dir: Path,
    *,
    shared: Sequence[GraphFile] = (),
    kept_scores: Path | None = None,
    after_fold: Callable[[Mapping[str, float]], None] = lambda values: None,
) -> CrossValidation:
    """Train `model` once per fold on the other folds' graphs, and judge it on the fold's.

    Of "blend", all the recipe's models of the collection's kind are trained, one seed each, and
    judged together. Goes on with what a killed call has left in `run_dir`. The training's seed is
    the recipe's first.

    Args:
        folds: labelled graphs of one collection, each family in one fold.
        shared: train graphs of all layout collections, for a recipe whose models begin from a
            shared one. That of a fold learns from no graph of the fold's families, whatever its
            collection.
        kept_scores: a folder where cross-validations of blends share what their members score, so
            that members alike are trained once. None = train all.
        after_fold: told each fold's value per graph, in the order of the folds and their graphs.

    Raises:
        UsageError: `run_dir` belongs to another recipe or other folds.
        PipelineError: as the model's training, or its scores are not finite.
        OutOfTime: as the model's training.
    """
    collection = folds[0][0].collection
    config = {
        "model": model,
        "collection": collection.name,
        "folds": [fingerprint(fold) for fold in folds],
        "recipe": recipe.model_dump(mode="json"),
    }
    if any(pretrain_steps(recipe, own) for own in judged_models(recipe, model, collection.kind)):
        config["shared_data"] = fingerprint(shared)
    begin(run_dir, config, resume=True)
    per_graph: dict[str, float] = {}
    means = []
    for number, held_out in enumerate(folds):
        families = set(map(family_of, held_out))
        fold = _Fold(
            learned=[file for other in folds if other is not held_out for file in other],
            held_out=held_out,
            shared=[file for file in shared if family_of(file) not in families],
            folder=run_dir / f"fold-{number}",
            shared_folder=run_dir / SHARED_FOLDER / f"fold-{number}",
            kept_scores=kept_scores,
        )
        ranker = _ranker(recipe, model, fold)
        graphs = map(read_graph, held_out)  # one in memory at a time
        values = {graph.file.name: _value(graph, ranker.score(graph)) for graph in graphs}
        means.append(float(np.mean(list(values.values()))))
        per_graph |= values
        after_fold(values)
    metric = "tile_score" if collection.kind == "tile" else "kendall_tau"
    result = CrossValidation(metric, float(np.mean(means)), tuple(means), per_graph)
    write_text(run_dir / REPORT, json.dumps(asdict(result), indent=1, allow_nan=False))
    mark_done(run_dir)
    return result


def _ranker(recipe: Recipe, model: str, fold: _Fold) -> Ranker:
    from ensembles.choice.in_run import recipe_mixing
    from ensembles.ensemble import Ensemble

    collection, seed = fold.held_out[0].collection, recipe.seeds[0]

    def job_of(name: str, folder: Path) -> TrainJob:
        begins_from = shared_model(recipe, name, seed, fold.shared, fold.shared_folder)
        return TrainJob(name, recipe, fold.learned, seed, folder, shared=begins_from)

    def trained(job: TrainJob) -> Ranker:
        train_model(job, collection, resume=True)
        return load_model(job.run_dir)

    if model != BLEND:
        return trained(job_of(model, fold.folder))
    rankers: dict[str, Ranker] = {}
    for own in judged_models(recipe, model, collection.kind):
        name = f"{own}-seed{seed}"
        job = job_of(own, fold.folder / name)
        rankers[name] = _kept(job, fold, trained) if fold.kept_scores else trained(job)
    mixing = recipe_mixing(recipe.blend, collection.kind, list(rankers))
    return Ensemble(collection, rankers, mixing)


def _kept(job: TrainJob, fold: _Fold, train: Callable[[TrainJob], Ranker]) -> Ranker:
    """Return a model by its scores of held-out graphs, which another trial may have left.

    Trials that differ in what this training does not read share its scores. Two that need them at
    once both train, and write the same.
    """
    others = {*MODELS, *job.recipe.own_models} - {job.model}
    decisive = {
        "recipe": job.recipe.model_dump(mode="json", exclude=others | _NOT_LEARNED_FROM),
        "train_data": fingerprint(job.files),
        "shared_data": fingerprint(job.shared.files) if job.shared else None,
        "held_out": fingerprint(fold.held_out),
    }
    text = json.dumps(decisive, sort_keys=True).encode()
    digest = hashlib.blake2b(text, digest_size=8).hexdigest()
    assert fold.kept_scores is not None
    path = fold.kept_scores / f"{job.model}-seed{job.seed}-{digest}.parquet"
    table = cached_scores(path, lambda: predict(train(job), fold.held_out))
    parts = table.partition_by("graph", as_dict=True, maintain_order=True)
    return ScoredRanker({str(key[0]): own["score"].to_numpy() for key, own in parts.items()})


def _value(graph: Graph, scores: NDArray[np.float32]) -> float:
    """Return Kendall's tau, or of a tile kernel the tile score, of a graph's scores (c,)."""
    path = graph.file.path
    if not np.isfinite(scores).all():
        raise PipelineError(f"{path}: a config's score is not finite")
    ranking = np.argsort(scores, kind="stable")
    if isinstance(graph, TileGraph):
        value = tile_score(ranking, graph.normalized_runtime)
    else:
        value = kendall_tau(np.argsort(ranking), graph.runtime_ns)
    if math.isnan(value):
        raise PipelineError(f"{path}: its runtimes give no order; it cannot be held out")
    return value


def pruner_of(study: StudyConfig) -> "BasePruner":
    """Return the study's pruner.

    Wilcoxon is a signed-rank test at 10 % that counts graphs as independent, which siblings are
    not.
    """
    from optuna import pruners

    if study.pruner == "none":
        return pruners.NopPruner()
    if study.pruner == "wilcoxon":
        return pruners.WilcoxonPruner(p_threshold=P_THRESHOLD)
    return pruners.HyperbandPruner(min_resource=1, max_resource=study.folds, reduction_factor=2)


def give_up_or_go_on(
    trial: "Trial", study: StudyConfig, *, never: bool
) -> Callable[[Mapping[str, float]], None]:
    """Return what is to be called after each fold: it reports, and raises TrialPruned.

    The Wilcoxon pruner is told of each graph, numbered from 0 in the order of the folds; others of
    the mean of the folds so far.

    Args:
        never: only report; the baseline is what others are compared with, and always ends.
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
