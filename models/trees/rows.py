"""The rows that boosting learns from: which configs, their labels, and their statistics on demand.

Bins are made from some rows of every graph; then LightGBM reads all rows block by block, through
`lightgbm.Sequence`, and keeps a byte per row and statistic. Measured with 20 graphs of 50,000 rows
of 100 statistics: 3 bytes per row and statistic, 7 while folds are tried.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import distinct_configs, group_means
from data.tree import GraphFile
from features.statistics.configs import RowStatistics, StatisticsSet, statistics_of
from models.config.recipe import BoostingConfig, RowsConfig

if TYPE_CHECKING:
    import lightgbm

# (graph, (r,) rows) -> (r, f)
Table = Callable[[GraphFile, NDArray[np.int64]], NDArray[np.float32]]

BLOCK_ROWS = 4096  # of statistics at once
MIN_LEAVES = 8  # that few rows can still fill
BIN_SAMPLE_ROWS = 50_000  # that the bins are made from


@dataclass(frozen=True)
class GraphRows:
    """The configs taken of one graph.

    Attributes:
        rows: (r,) int64 of the file.
        runtime: (r,) float64 mean over equal configs; a tile config's relative to its normalizer.
    """

    file: GraphFile
    rows: NDArray[np.int64]
    runtime: NDArray[np.float64]

    def groups(self, at_most: int) -> list[int]:
        """Return the sizes of the groups within which configs are compared; rows are shuffled."""
        n_groups = -(-len(self.rows) // at_most)
        return [len(part) for part in np.array_split(self.rows, n_groups)]


def relevance(runtime: NDArray[np.float64], levels: int) -> NDArray[np.int32]:
    """Cut runtimes (c,) into levels (c,) int32: the fastest get `levels` - 1, the slowest 0."""
    distinct, position = np.unique(runtime, return_inverse=True)
    share = position / max(1, len(distinct) - 1)
    return np.round((1 - share) * (levels - 1)).astype(np.int32)


def sample_rows(files: Sequence[GraphFile], config: RowsConfig, seed: int) -> list[GraphRows]:
    """Draw distinct configs of each graph, in random order; graphs without order are left out.

    Raises:
        PipelineError: no graph has two configs of different runtime.
    """
    sampled = []
    for number, file in enumerate(files):
        graph = read_graph(file)
        first, group = distinct_configs(graph)
        order = np.random.default_rng([seed, number]).permutation(len(first))
        chosen = order[: config.configs_per_graph]
        rows, runtime = first[chosen], group_means(graph.runtime, group)[chosen]
        if len(rows) >= 2 and runtime.min() < runtime.max():
            sampled.append(GraphRows(file, rows, runtime))
    if not sampled:
        kind = files[0].collection.kind if files else ""
        raise PipelineError(f"boosting: no {kind} graph has two configs of different runtime")
    return sampled


def statistics_table(chosen: StatisticsSet) -> Table:
    """Return what computes graphs' statistics; the graph asked for last stays in memory."""
    open_graph: dict[GraphFile, RowStatistics] = {}

    def table(file: GraphFile, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        if file not in open_graph:
            open_graph.clear()  # the last graph goes before the next one comes
            open_graph[file] = statistics_of(read_graph(file), chosen)
        return open_graph[file](rows)

    return table


def binned(
    graphs: Sequence[GraphRows], config: BoostingConfig, table: Table, names: Sequence[str]
) -> "lightgbm.Dataset":
    """Return LightGBM's binned rows of all graphs, in order; `names` are those of the columns."""
    import lightgbm

    class Rows(lightgbm.Sequence):
        """One graph's rows."""

        batch_size = BLOCK_ROWS

        def __init__(self, graph: GraphRows) -> None:
            self._graph = graph

        def __len__(self) -> int:
            return len(self._graph.rows)

        def __getitem__(self, index: int | slice | list[int]) -> NDArray[np.float64]:
            rows = np.atleast_1d(self._graph.rows[index])
            return table(self._graph.file, rows).astype(np.float64)

    # A Sequence could be binned by itself, but LightGBM asks it for single rows then, and finds no
    # features in few rows of mostly zeros.
    share = min(1.0, BIN_SAMPLE_ROWS / sum(len(graph.rows) for graph in graphs))
    sampled = [
        table(graph.file, graph.rows[: math.ceil(share * len(graph.rows))]) for graph in graphs
    ]
    parameters = dataset_parameters(config, sum(len(graph.rows) for graph in graphs))
    bins = lightgbm.Dataset(np.concatenate(sampled), feature_name=list(names), params=parameters)
    return lightgbm.Dataset(
        [Rows(graph) for graph in graphs],
        label=np.concatenate([relevance(g.runtime, config.relevance_levels) for g in graphs]),
        group=[size for graph in graphs for size in graph.groups(config.configs_per_group)],
        reference=bins.construct(),
        params=parameters,
    ).construct()


def dataset_parameters(config: BoostingConfig, n_rows: int) -> dict[str, object]:
    """Return what decides how `n_rows` rows are kept.

    LightGBM leaves out a column that cannot be split, and breaks where it is left with none; so few
    rows have smaller leaves.
    """
    rows_per_leaf = max(1, min(config.min_rows_per_leaf, n_rows // MIN_LEAVES))
    return {
        "bin_construct_sample_cnt": BIN_SAMPLE_ROWS,
        "min_data_in_leaf": rows_per_leaf,
        "min_data_in_bin": min(3, rows_per_leaf),
        "force_row_wise": True,
        "deterministic": True,
        "verbosity": -1,
    }
