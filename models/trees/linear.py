"""Linear rankers on hand-crafted statistics: the floor that trees and networks must beat.

Ridge regression of a config's rank by runtime, standardised within its graph, on its statistics,
each less its mean over the graph's configs; so only differences within a graph are learned from.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import write_text
from common.errors import PipelineError
from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph
from features.statistics.configs import STATISTICS, statistics_names, statistics_of
from models.config.rankers import LinearConfig
from models.config.recipe import Recipe
from models.training.jobs import TrainJob
from models.trees.rows import OpenGraph, sample_rows

MODEL_FILE = "linear.json"


def train(job: TrainJob) -> None:
    """Train on labelled graphs of one kind, one in memory at a time, and write linear.json.

    Raises:
        PipelineError: no graph has two configs of different runtime, or the disk is full.
    """
    from scipy.stats import rankdata
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    config: LinearConfig = getattr(job.recipe, job.model)
    open_graph = OpenGraph(config.statistics)
    tables, targets = [], []
    for graph in sample_rows(job.files, config, job.seed):
        statistics = open_graph(graph.file, graph.rows)
        tables.append(statistics - statistics.mean(axis=0))
        ranks = rankdata(graph.runtime)  # a few very slow configs would decide all weights
        targets.append((ranks - ranks.mean()) / ranks.std())
    model = make_pipeline(
        StandardScaler(with_mean=False), Ridge(alpha=config.penalty, fit_intercept=False)
    )
    model.fit(np.concatenate(tables).astype(np.float64), np.concatenate(targets))
    weights = model[-1].coef_ / model[0].scale_
    names = statistics_names(job.files[0].collection.kind, config.statistics)
    content = dict(zip(names, weights.tolist(), strict=True))
    write_text(job.run_dir / MODEL_FILE, json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True)
class LinearRanker:
    """Weights (f,) of the statistics that `config` names."""

    weights: NDArray[np.float64]
    config: LinearConfig

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a graph; (c,) float32, lower = faster."""
        first, group = distinct_configs(graph)
        statistics = statistics_of(graph, self.config.statistics)(first).astype(np.float64)
        # The mean is the same for all, and would only cost digits.
        scores = (statistics - statistics.mean(axis=0)) @ self.weights
        return scores.astype(np.float32)[group]


def load(name: str, run_dir: Path, recipe: Recipe) -> LinearRanker:
    """Load what `train` wrote for the model `name`.

    Raises:
        PipelineError: the model file is missing, damaged, or was trained on other statistics.
    """
    config: LinearConfig = getattr(recipe, name)
    path = run_dir / MODEL_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error
    known = [statistics_names(kind, config.statistics) for kind in STATISTICS]
    if not isinstance(content, dict) or tuple(content) not in known:
        raise PipelineError(f"{path}: of other statistics; train it again")
    return LinearRanker(np.asarray(list(content.values())), config)
