"""Gradient-boosting rankers on hand-crafted statistics, one row per config.

LightGBM's LambdaRank (Burges, 2010) with the graph as the group: only the order within a graph
counts. Relevance is the config's rank by runtime, cut into levels, with a gain that grows linearly
so that all of the order matters and not only its top.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.atomic import atomic_path
from data.distinct import distinct_configs, group_means
from data.errors import PipelineError
from data.graph import Graph, TileGraph
from features.config_statistics import STATISTICS, graph_statistics
from models.model_configs import BoostingConfig

MODEL_FILE = "booster.txt"


def relevance(runtime: NDArray[np.float64], levels: int) -> NDArray[np.int32]:
    """Cut runtimes (c,) into relevance levels: the fastest get `levels` - 1, the slowest 0.

    Equal runtimes get equal levels; (c,) int32.
    """
    distinct, position = np.unique(runtime, return_inverse=True)
    share = position / max(1, len(distinct) - 1)
    return np.round((1 - share) * (levels - 1)).astype(np.int32)


def train_boosting(
    graphs: Iterable[Graph],
    config: BoostingConfig,
    *,
    kind: str,
    seed: int,
    threads: int,
    run_dir: Path,
) -> None:
    """Train on labelled graphs, one in memory at a time, and write booster.txt.

    Args:
        graphs: of one kind.
        config: rounds, tree sizes, and how many configs of a graph are taken.
        kind: "layout" or "tile".
        seed: of the sample of configs and of the boosting.
        threads: LightGBM's own; it must not fight others for cores.
        run_dir: where the model goes.

    Raises:
        PipelineError: no graph has two configs of different runtime, or the disk is full.
    """
    import lightgbm

    tables, labels, sizes = [], [], []
    for number, graph in enumerate(graphs):
        rows, runtime = _sample(graph, config.configs_per_graph, [seed, number])
        if len(rows) < 2 or runtime.min() == runtime.max():
            continue
        tables.append(graph_statistics(graph, rows))
        labels.append(relevance(runtime, config.relevance_levels))
        sizes.append(len(rows))
    if not sizes:
        raise PipelineError(f"boosting: no {kind} graph has two configs of different runtime")
    train_set = lightgbm.Dataset(
        np.concatenate(tables),
        np.concatenate(labels),
        group=sizes,
        feature_name=list(STATISTICS[kind]),
    )
    booster = lightgbm.train(
        _parameters(config, seed=seed, threads=threads), train_set, config.rounds
    )
    with atomic_path(run_dir / MODEL_FILE) as temporary:
        booster.save_model(str(temporary))


def _parameters(config: BoostingConfig, *, seed: int, threads: int) -> dict[str, object]:
    return {
        "objective": "lambdarank",
        "label_gain": list(range(config.relevance_levels)),
        "lambdarank_truncation_level": config.configs_per_graph,
        "learning_rate": config.learning_rate,
        "num_leaves": config.leaves,
        "min_data_in_leaf": config.min_rows_per_leaf,
        "feature_fraction": config.column_share,
        "seed": seed,
        "num_threads": threads,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }


def _sample(
    graph: Graph, at_most: int, seed: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw distinct configs of a graph; their rows and their mean runtimes."""
    first, group = distinct_configs(graph)
    runtime = _comparable_runtime(graph, group)
    chosen = np.random.default_rng(seed).permutation(len(first))[:at_most]
    return first[chosen], runtime[chosen]


def _comparable_runtime(graph: Graph, group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean runtime per distinct config; a tile config's is relative to its normalizer."""
    relative = graph.normalized_runtime if isinstance(graph, TileGraph) else graph.runtime_ns
    return group_means(relative, group)


def score_boosting(graph: Graph, run_dir: Path, *, kind: str, threads: int) -> NDArray[np.float32]:
    """Score every config of a graph; (c,) float32, lower = faster.

    Raises:
        PipelineError: the model file is missing or was trained on other statistics.
    """
    import lightgbm

    path = run_dir / MODEL_FILE
    try:
        booster = lightgbm.Booster(model_file=str(path))
    except lightgbm.basic.LightGBMError as error:
        raise PipelineError(f"{path}: not a LightGBM model: {error}") from error
    if tuple(booster.feature_name()) != STATISTICS[kind]:
        raise PipelineError(f"{path}: was trained on other statistics; train it again")
    first, group = distinct_configs(graph)
    predicted = booster.predict(graph_statistics(graph, first), num_threads=threads)
    return -np.asarray(predicted, dtype=np.float32)[group]
