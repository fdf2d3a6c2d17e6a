"""Linear rankers on hand-crafted statistics: the floor that trees and networks must beat.

Ridge regression of a config's rank by runtime, standardised within its graph, on its statistics,
each less its mean over the graph's configs; so only differences within a graph are learned from.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import write_text
from common.errors import PipelineError
from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph
from data.tree import GraphFile
from features.statistics.configs import statistics_names, statistics_of
from models.config.rankers import LinearConfig
from models.trees.rows import OpenGraph, sample_rows

MODEL_FILE = "linear.json"


def train_linear(
    files: Sequence[GraphFile], config: LinearConfig, *, seed: int, run_dir: Path
) -> None:
    """Train on labelled graphs of one kind, one in memory at a time, and write linear.json.

    Raises:
        PipelineError: no graph has two configs of different runtime, or the disk is full.
    """
    from scipy.stats import rankdata
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    open_graph = OpenGraph(config.statistics)
    tables, targets = [], []
    for graph in sample_rows(files, config, seed):
        statistics = open_graph(graph.file, graph.rows)
        tables.append(statistics - statistics.mean(axis=0))
        ranks = rankdata(graph.runtime)  # a few very slow configs would decide all weights
        targets.append((ranks - ranks.mean()) / ranks.std())
    model = make_pipeline(
        StandardScaler(with_mean=False), Ridge(alpha=config.penalty, fit_intercept=False)
    )
    model.fit(np.concatenate(tables).astype(np.float64), np.concatenate(targets))
    weights = model[-1].coef_ / model[0].scale_
    names = statistics_names(files[0].collection.kind, config.statistics)
    content = dict(zip(names, weights.tolist(), strict=True))
    write_text(run_dir / MODEL_FILE, json.dumps(content, indent=1) + "\n")


def load_linear(
    run_dir: Path, config: LinearConfig, *, kind: str
) -> Callable[[Graph], NDArray[np.float32]]:
    """Return what scores every config of a graph; (c,) float32, lower = faster.

    Args:
        kind: of the graphs' configs, "layout" or "tile".

    Raises:
        PipelineError: the model file is missing, damaged, or was trained on other statistics.
    """
    path = run_dir / MODEL_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict) or tuple(content) != statistics_names(kind, config.statistics):
        raise PipelineError(f"{path}: of other statistics; train it again")
    return partial(_scores, np.asarray(list(content.values())), config)


def _scores(
    weights: NDArray[np.float64], config: LinearConfig, graph: Graph
) -> NDArray[np.float32]:
    first, group = distinct_configs(graph)
    statistics = statistics_of(graph, config.statistics)(first).astype(np.float64)
    # The mean is the same for all, and would only cost digits.
    scores = (statistics - statistics.mean(axis=0)) @ weights
    return scores.astype(np.float32)[group]
