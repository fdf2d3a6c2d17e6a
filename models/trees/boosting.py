"""Gradient-boosting rankers on hand-crafted statistics, one row per config.

LightGBM with the graph as the group: only the order within a graph counts. Two objectives:
LambdaRank (Burges, 2010), with the config's rank by runtime, cut into levels, as relevance and a
gain that grows linearly, so that all of the order matters and not only its top; and the pairwise
logistic loss, see models/trees/objective.py.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.atomic import write_text
from common.errors import PipelineError
from common.parquet import read_table, write_table
from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph
from data.tree import GraphFile
from features.statistics.configs import statistics_names, statistics_of
from models.config.rankers import BoostingConfig
from models.trees.objective import pairwise_logistic
from models.trees.rounds import Advance, choose_rounds
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
    rounds = config.rounds
    if config.early_stop:
        rounds = choose_rounds(
            graphs,
            lambda learned, held_out: _judged(begin(learned), dataset, held_out),
            at_most=config.rounds,
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
    """Return what takes a round, and then gives the scores of held-out rows."""
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
        "num_leaves": config.leaves,
        "feature_fraction": config.column_share,
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
