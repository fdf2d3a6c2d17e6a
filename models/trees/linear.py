"""Linear rankers on hand-crafted statistics: the baseline for trees and networks.

A ridge regression predicts a config's rank by runtime, standardised within its graph. Its inputs
are statistics minus their mean over the graph's configs, so only differences within a graph count.
A statistic that hardly varies in training may vary a lot in another program, so its inputs are
limited.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.files import read_json, write_text
from data.graphs.graph import Graph, distinct_configs
from features.statistics.configs import STATISTICS, StatisticsSet, statistics_names, statistics_of
from models.config.recipe import Recipe
from models.config.trees import LinearConfig
from models.registry import TrainJob
from models.trees.rows import GraphRows, sample_rows, statistics_table

MODEL_FILE = "linear.json"
# The linear ranker that trees may begin from. Its scores have a deviation of about 1 in a graph.
# In the logistic loss of a pair, the scale is the confidence of the ranker.
LINEAR, LINEAR_SCALE = LinearConfig(statistics="plain"), 2.0
# Largest input, in standard deviations of the statistic in training. On held-out families of the
# sample's train split, 5 to 20 rank alike, and without a limit a few programs have scores of 400.
MAX_DEVIATIONS = 10.0


def train_linear(job: TrainJob) -> None:
    """Train on labelled graphs of one kind, one in memory at a time, and write linear.json."""
    config: LinearConfig = getattr(job.recipe, job.model)
    ranker, _ = LinearRows(sample_rows(job.files, config, job.seed), config).fit()
    ranker.write(job.run_dir)


class LinearRows:
    """Rows of graphs with their statistics, to fit linear rankers on parts of them."""

    def __init__(self, graphs: Sequence[GraphRows], config: LinearConfig) -> None:
        """Compute the statistics."""
        self.graphs, self.config = graphs, config
        table_of = statistics_table(config.statistics)
        self.tables = [table_of(graph.file, graph.rows) for graph in graphs]

    def fit(
        self, is_learned: NDArray[np.bool_] | None = None
    ) -> "tuple[LinearRanker, NDArray[np.float64]]":
        """Fit a linear ranker.

        Args:
            is_learned: (r,) whether the ranker learns a row. None learns all rows.

        Returns:
            The ranker, and its scores of all rows, (r,).
        """
        from scipy.stats import rankdata
        from sklearn.linear_model import Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        sizes = [len(graph.rows) for graph in self.graphs]
        mask = np.ones(sum(sizes), dtype=bool) if is_learned is None else is_learned
        inputs, targets = [], []
        parts = np.split(mask, np.cumsum(sizes)[:-1])
        for graph, table, rows in zip(self.graphs, self.tables, parts, strict=True):
            if rows.any():
                # With runtimes in place of ranks, a few very slow configs would determine all
                # weights.
                ranks = rankdata(graph.runtime[rows])
                targets.append((ranks - ranks.mean()) / (ranks.std() or 1.0))
                inputs.append(table[rows] - table[rows].mean(axis=0))
        model = make_pipeline(
            StandardScaler(with_mean=False),
            Ridge(alpha=self.config.penalty, fit_intercept=False),
        )
        model.fit(np.concatenate(inputs).astype(np.float64), np.concatenate(targets))
        kind, statistics = self.graphs[0].file.collection.kind, self.config.statistics
        scale = model[0].scale_
        values = np.stack([model[-1].coef_ / scale, MAX_DEVIATIONS * scale], axis=1).tolist()
        names = statistics_names(kind, statistics)
        weights = {name: (w, limit) for name, (w, limit) in zip(names, values, strict=True)}
        ranker = LinearRanker(weights, statistics)
        return ranker, np.concatenate([ranker.of(table) for table in self.tables])


@dataclass(frozen=True)
class LinearRanker:
    """Weight and largest input of each statistic, by name."""

    weights: dict[str, tuple[float, float]]
    statistics: StatisticsSet

    def score(self, graph: Graph) -> NDArray[np.float32]:
        first, group = distinct_configs(graph)
        scores = self.of(statistics_of(graph, self.statistics)(first))
        return scores.astype(np.float32)[group]

    def of(self, table: NDArray[np.float32]) -> NDArray[np.float64]:
        """Score configs (r,) of a graph by their statistics, (r, f)."""
        weights, limits = np.asarray(list(self.weights.values())).T
        inputs = table.astype(np.float64) - table.mean(axis=0, dtype=np.float64)
        return np.asarray(inputs.clip(-limits, limits) @ weights)

    def write(self, run_dir: Path) -> None:
        write_text(run_dir / MODEL_FILE, json.dumps(self.weights, indent=1) + "\n")


def load_linear(name: str, run_dir: Path, recipe: Recipe) -> LinearRanker:
    return read_linear(run_dir, getattr(recipe, name))


def of_other_statistics(path: Path) -> PipelineError:
    return PipelineError(
        f"{path}: of other statistics; remove its folder, and those of all models that were "
        "trained before the statistics changed; then train them again"
    )


def read_linear(run_dir: Path, config: LinearConfig) -> LinearRanker:
    """Read the ranker that `LinearRanker.write` wrote."""
    path = run_dir / MODEL_FILE
    weights = read_json(
        path, dict[str, tuple[float, float]], expected="a weight and a limit for each statistic"
    )
    if tuple(weights) not in [statistics_names(kind, config.statistics) for kind in STATISTICS]:
        raise of_other_statistics(path)
    return LinearRanker(weights, config.statistics)
