"""Gradient-boosting rankers on hand-crafted statistics, one row per config.

LightGBM with the graph as the group: only the order within a graph counts. Two objectives:
LambdaRank (Burges, 2010), with the config's rank by runtime, cut into levels, as relevance and a
gain that grows linearly, so that all of the order matters and not only its top; and the pairwise
logistic loss over all pairs (RankNet, Burges et al., 2005). LambdaRank weighs a pair by what
swapping it would change of NDCG, which favours the top; Kendall's tau counts all pairs alike, as
that does. LightGBM has no such objective of its own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.atomic import write_text
from common.checksums import read_table, write_table
from common.errors import PipelineError
from common.metrics import kendall_tau, tile_score
from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph
from data.tree import GraphFile
from features.statistics.configs import statistics_names, statistics_of
from models.config.rankers import BoostingConfig
from models.training.folds import family_of, grouped_folds
from models.trees.rows import (
    GraphRows,
    OpenGraph,
    Table,
    binned,
    dataset_parameters,
    sample_rows,
)

if TYPE_CHECKING:
    import lightgbm

MODEL_FILE = "booster.txt"
IMPORTANCES = "importances.parquet"
SCORED_ROWS = 4096  # at once
MAX_PAIRS = 1 << 21  # looked at at once

Objective = Callable[
    [NDArray[np.float64], "lightgbm.Dataset"], tuple[NDArray[np.float32], NDArray[np.float32]]
]
# Advances by a round and returns the scores (r,) of the held-out rows, higher = faster.
Advance = Callable[[], NDArray[np.float64]]
# (learned, held-out) row numbers -> what advances
Begin = Callable[[NDArray[np.int64], NDArray[np.int64]], Advance]


def train_boosting(
    files: Sequence[GraphFile],
    config: BoostingConfig,
    *,
    seed: int,
    threads: int,
    run_dir: Path,
) -> None:
    """Train on labelled graphs, one in memory at a time; write booster.txt and importances.parquet.

    Args:
        files: of one kind.
        config: rounds, tree sizes, and how many configs of a graph are taken.
        seed: of the sample of configs and of the boosting.
        threads: LightGBM's own; it must not fight others for cores.
        run_dir: where the model goes.

    Raises:
        PipelineError: no graph has two configs of different runtime, or the disk is full.
    """
    graphs = sample_rows(files, config, seed)
    names = statistics_names(files[0].collection.kind, config.statistics)
    table = OpenGraph(config.statistics)
    train_on_rows(graphs, config, table, names, seed=seed, threads=threads, run_dir=run_dir)


def train_on_rows(
    graphs: Sequence[GraphRows],
    config: BoostingConfig,
    table: Table,
    names: Sequence[str],
    *,
    seed: int,
    threads: int,
    run_dir: Path,
) -> None:
    """Train on some rows of graphs, whose columns `table` computes and `names` names."""
    dataset = binned(graphs, config, table, names)
    begin = partial(_begin, graphs, dataset, config, seed, threads)
    rounds = config.num_boost_round
    if config.early_stop:
        rounds = choose_rounds(
            graphs,
            lambda learned, held_out: _judged(begin(learned), dataset, held_out),
            at_most=config.num_boost_round,
            patience=config.early_stop,
            n_folds=config.folds,
            seed=seed,
        )
    booster, update = begin(None)
    for _ in range(rounds):
        update()
    write_booster(booster, run_dir)


def _begin(  # noqa: PLR0917 (bound one after the other)
    graphs: Sequence[GraphRows],
    dataset: "lightgbm.Dataset",
    config: BoostingConfig,
    seed: int,
    threads: int,
    rows: NDArray[np.int64] | None,
) -> tuple["lightgbm.Booster", Advance]:
    """Start a training on some rows, or on all; return it, and what takes a round."""
    import lightgbm

    train_set = dataset if rows is None else dataset.subset(rows.tolist()).construct()
    n_rows = sum(len(graph.rows) for graph in graphs)
    parameters = booster_parameters(config, n_rows, seed=seed, threads=threads)
    booster = lightgbm.Booster(parameters, train_set)
    if config.objective == "lambdarank":
        return booster, booster.update
    runtime = np.concatenate([graph.runtime for graph in graphs])
    part = runtime if rows is None else runtime[rows]
    objective = pairwise_logistic(part, np.asarray(train_set.get_group()).tolist())
    return booster, lambda: booster.update(fobj=objective)


def _judged(
    begun: tuple["lightgbm.Booster", Advance],
    dataset: "lightgbm.Dataset",
    held_out: NDArray[np.int64],
) -> Advance:
    booster, update = begun
    booster.add_valid(dataset.subset(held_out.tolist()).construct(), "held out")
    scores = np.empty(0)

    def keep(predicted: NDArray[np.float64], _: "lightgbm.Dataset") -> tuple[str, float, bool]:
        nonlocal scores
        scores = predicted
        return "", 0.0, True

    def advance() -> NDArray[np.float64]:
        update()
        booster.eval_valid(keep)
        return scores

    return advance


def booster_parameters(
    config: BoostingConfig, n_rows: int, *, seed: int, threads: int
) -> dict[str, object]:
    """Return LightGBM's parameters for a recipe's, and the rows that there are to learn from."""
    ranking = {
        "objective": "lambdarank",
        "label_gain": list(range(config.relevance_levels)),
        "lambdarank_truncation_level": min(config.configs_per_graph, config.configs_per_group),
    }
    return {
        **(ranking if config.objective == "lambdarank" else {"objective": "none"}),
        **dataset_parameters(config, n_rows),
        "metric": "none",
        "learning_rate": config.learning_rate,
        "num_leaves": config.num_leaves,
        "feature_fraction": config.feature_fraction,
        "seed": seed,
        "num_threads": threads,
    }


def write_booster(booster: "lightgbm.Booster", run_dir: Path) -> None:
    """Write the model, and how much each statistic gained and how often it split."""
    write_text(run_dir / MODEL_FILE, booster.model_to_string())
    importances = pl.DataFrame(
        {
            "statistic": booster.feature_name(),
            "gain": booster.feature_importance("gain").astype(np.float64),
            "splits": booster.feature_importance("split").astype(np.int64),
        }
    ).sort("gain", "statistic", descending=[True, False])
    write_table(run_dir / IMPORTANCES, importances)


def read_importances(run_dirs: Sequence[Path]) -> pl.DataFrame | None:
    """Read how much models rest on each statistic, averaged; None if none of them tells.

    Returns:
        statistic, gain (share of all gain) and splits (share of all splits), largest gain first.

    Raises:
        PipelineError: a file is damaged.
    """
    paths = [run_dir / IMPORTANCES for run_dir in run_dirs if (run_dir / IMPORTANCES).exists()]
    if not paths:
        return None
    shares = [
        read_table(path).with_columns(
            pl.col(column) / pl.col(column).sum().clip(lower_bound=1e-12)
            for column in ("gain", "splits")
        )
        for path in paths
    ]
    table = pl.concat(shares).group_by("statistic").agg(pl.col("gain", "splits").sum() / len(paths))
    return table.sort("gain", "statistic", descending=[True, False])


def read_booster(run_dir: Path) -> "lightgbm.Booster":
    """Read the model of a run folder.

    Raises:
        PipelineError: it is missing or damaged.
    """
    import lightgbm

    path = run_dir / MODEL_FILE
    try:
        return lightgbm.Booster(model_file=str(path))
    except lightgbm.basic.LightGBMError as error:
        raise PipelineError(f"{path}: not a LightGBM model: {error}") from error


def load_boosting(
    run_dir: Path, config: BoostingConfig, *, kind: str, threads: int
) -> Callable[[Graph], NDArray[np.float32]]:
    """Return what scores every config of a graph; (c,) float32, lower = faster.

    Args:
        kind: of the graphs' configs, "layout" or "tile".

    Raises:
        PipelineError: the model file is missing or was trained on other statistics.
    """
    booster = read_booster(run_dir)
    if tuple(booster.feature_name()) != statistics_names(kind, config.statistics):
        raise PipelineError(f"{run_dir / MODEL_FILE}: of other statistics; train it again")
    return partial(_scores, booster, config, threads)


def _scores(
    booster: "lightgbm.Booster", config: BoostingConfig, threads: int, graph: Graph
) -> NDArray[np.float32]:
    first, group = distinct_configs(graph)
    statistics = statistics_of(graph, config.statistics)
    parts = [
        np.asarray(booster.predict(statistics(part), num_threads=threads), dtype=np.float32)
        for part in np.array_split(first, -(-len(first) // SCORED_ROWS))
    ]
    return -np.concatenate(parts)[group]


def choose_rounds(
    graphs: Sequence[GraphRows],
    begin: Begin,
    *,
    at_most: int,
    patience: int,
    n_folds: int,
    seed: int,
) -> int:
    """Return the round at which the mean of the folds is best, over those that all of them reached.

    Folds are trained one after the other, each until its own held-out graphs have not been ranked
    better for `patience` rounds.

    Args:
        begin: starts a training on some rows.
    """
    fold_of = row_folds(graphs, n_folds, seed)
    curves = []
    for fold in range(fold_of.max() + 1):
        held_out = np.flatnonzero(fold_of == fold)
        advance = begin(np.flatnonzero(fold_of != fold), held_out)
        curve: list[float] = []
        while len(curve) < at_most and len(curve) - int(np.argmax(curve or [0])) <= patience:
            curve.append(ranked(graphs, held_out, advance()))
        curves.append(curve)
        del advance  # a fold's rows go before the next one's come
    shortest = min(map(len, curves))
    return int(np.argmax(np.mean([curve[:shortest] for curve in curves], axis=0))) + 1


def row_folds(graphs: Sequence[GraphRows], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row; whole families, or with one family configs of each graph."""
    files = [graph.file for graph in graphs]
    n_families = len({family_of(file) for file in files})
    sizes = [len(graph.rows) for graph in graphs]
    if n_families < 2:
        return np.concatenate([np.arange(size) % n_folds for size in sizes])
    folds = grouped_folds(files, min(n_folds, n_families), seed)
    fold_of = {file: number for number, fold in enumerate(folds) for file in fold}
    return np.repeat([fold_of[file] for file in files], sizes)


def ranked(
    graphs: Sequence[GraphRows], held_out: NDArray[np.int64], scores: NDArray[np.float64]
) -> float:
    """Return how well held-out rows are ranked, as their collection is judged; mean over graphs.

    Args:
        held_out: (h,) ascending row numbers over all graphs.
        scores: (h,) higher = faster.
    """
    values = []
    start = 0
    for graph in graphs:
        mine = slice(*np.searchsorted(held_out, [start, start + len(graph.rows)]))
        runtime = graph.runtime[held_out[mine] - start]
        start += len(graph.rows)
        if len(runtime) >= 2 and runtime.min() < runtime.max():
            judge = _judge_tile if graph.file.collection.kind == "tile" else kendall_tau
            values.append(judge(-scores[mine], runtime))
    return float(np.mean(values)) if values else 0.0


def _judge_tile(scores: NDArray[np.float64], runtime: NDArray[np.float64]) -> float:
    return tile_score(np.argsort(scores, kind="stable"), runtime)


def pairwise_logistic(runtime: NDArray[np.float64], sizes: Sequence[int]) -> Objective:
    """Return an objective for LightGBM.

    The loss of a group of g rows is 1/g · Σ log(1 + exp(s_slow − s_fast)) over its pairs of
    different runtime; a higher score s means faster.

    Args:
        runtime: (r,) of the training rows.
        sizes: of consecutive groups, adding up to r.
    """
    ends = np.cumsum(sizes)

    def objective(
        scores: NDArray[np.float64], dataset: "lightgbm.Dataset"
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        gradient, hessian = np.empty(len(scores), np.float32), np.empty(len(scores), np.float32)
        for end, size in zip(ends, sizes, strict=True):
            part = slice(end - size, end)
            gradient[part], hessian[part] = _group(scores[part], runtime[part])
        return gradient, hessian

    return objective


def _group(
    scores: NDArray[np.float64], runtime: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the gradient and the diagonal of the Hessian of one group (g,); rows in blocks."""
    g = len(scores)
    scores, runtime = scores.astype(np.float32), runtime.astype(np.float64)
    gradient, hessian = np.empty(g, np.float32), np.empty(g, np.float32)
    step = max(1, MAX_PAIRS // g)
    for start in range(0, g, step):
        rows = slice(start, start + step)
        is_faster = np.sign(runtime - runtime[rows, None]).astype(np.float32)  # (b, g)
        margin = is_faster * (scores[rows, None] - scores)
        wrong = np.abs(is_faster) / (1 + np.exp(np.clip(margin, -30, 30)))
        gradient[rows] = -(is_faster * wrong).sum(axis=1) / g
        hessian[rows] = (wrong * (1 - wrong)).sum(axis=1) / g
    return gradient, np.maximum(hessian, 1e-6)
