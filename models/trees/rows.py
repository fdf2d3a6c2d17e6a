"""The rows that boosting learns from: configs, their labels, and their statistics on demand.

Some rows of every graph determine the bins. LightGBM then reads all rows block by block through
`lightgbm.Sequence`, and stores a byte per row and statistic. The memory for 20 graphs of 50,000
rows of 100 statistics is 3 bytes per row and statistic, and 8 bytes with cross-validation.
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
from models.config.trees import BoostingConfig, RowsConfig

if TYPE_CHECKING:
    import lightgbm

# (graph, (r,) rows) -> (r, f)
Table = Callable[[GraphFile, NDArray[np.int64]], NDArray[np.float32]]

# Rows whose statistics are computed at once.
BLOCK_ROWS = 4096
# Few rows must still fill this number of leaves.
MIN_LEAVES = 8
# A leaf need not have more than this share of the rows, nor more than two rows.
LEAF_SHARE, LEAF_ROWS = 1 / 128, 2
# Number of rows that determine the bins.
BIN_SAMPLE_ROWS = 50_000


@dataclass(frozen=True)
class GraphRows:
    """The sampled configs of one graph.

    Attributes:
        rows: (r,) int64 rows of the file.
        runtime: (r,) float64 mean over equal configs. Tile runtimes are relative to the normalizer.
    """

    file: GraphFile
    rows: NDArray[np.int64]
    runtime: NDArray[np.float64]

    def groups(self, at_most: int) -> list[int]:
        """Return the sizes of the groups within which configs are compared. Rows are shuffled."""
        n_groups = -(-len(self.rows) // at_most)
        return [len(part) for part in np.array_split(self.rows, n_groups)]


def relevance(runtime: NDArray[np.float64], levels: int) -> NDArray[np.int32]:
    """Cut runtimes (c,) into levels (c,): 0 for the slowest, `levels` - 1 for the fastest."""
    distinct, position = np.unique(runtime, return_inverse=True)
    share = position / max(1, len(distinct) - 1)
    return np.round((1 - share) * (levels - 1)).astype(np.int32)


def sample_rows(files: Sequence[GraphFile], config: RowsConfig, seed: int) -> list[GraphRows]:
    """Sample distinct configs of each graph that has an order, in random order."""
    samples = []
    for number, file in enumerate(files):
        graph = read_graph(file)
        first, group = distinct_configs(graph)
        order = np.random.default_rng([seed, number]).permutation(len(first))
        places = order[: config.configs_per_graph]
        rows, runtime = first[places], group_means(graph.runtime, group)[places]
        if len(rows) >= 2 and runtime.min() < runtime.max():
            samples.append(GraphRows(file, rows, runtime))
    if not samples:
        kind = files[0].collection.kind if files else ""
        raise PipelineError(f"boosting: no {kind} graph has two configs of different runtime")
    return samples


def statistics_table(statistics: StatisticsSet) -> Table:
    """Return a function that computes statistics and keeps the last graph in memory."""
    open_graph: dict[GraphFile, RowStatistics] = {}

    def table(file: GraphFile, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        if file not in open_graph:
            # The old graph is freed before the new one is read.
            open_graph.clear()
            open_graph[file] = statistics_of(read_graph(file), statistics)
        return open_graph[file](rows)

    return table


def bin_rows(
    graphs: Sequence[GraphRows], config: BoostingConfig, table: Table, names: Sequence[str]
) -> "lightgbm.Dataset":
    """Return the binned rows of all graphs, in order."""
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

    # LightGBM can bin a Sequence alone, but it then reads single rows, and finds no features in few
    # rows of mostly zeros.
    share = min(1.0, BIN_SAMPLE_ROWS / sum(len(graph.rows) for graph in graphs))
    samples = [
        table(graph.file, graph.rows[: math.ceil(share * len(graph.rows))]) for graph in graphs
    ]
    parameters = dataset_parameters(config, sum(len(graph.rows) for graph in graphs))
    bins = lightgbm.Dataset(np.concatenate(samples), feature_name=list(names), params=parameters)
    return lightgbm.Dataset(
        [Rows(graph) for graph in graphs],
        label=np.concatenate([relevance(g.runtime, config.relevance_levels) for g in graphs]),
        group=[size for graph in graphs for size in graph.groups(config.configs_per_group)],
        reference=bins.construct(),
        params=parameters,
    ).construct()


def dataset_parameters(config: BoostingConfig, n_rows: int) -> dict[str, object]:
    """Return the LightGBM parameters of a dataset.

    The leaves of few rows are smaller. 500 configs of one program are ranked better with leaves of
    3 rows than of 20. LightGBM drops a column that cannot be split, and fails if no column is left.
    """
    most = max(LEAF_ROWS, int(LEAF_SHARE * n_rows))
    rows_per_leaf = max(1, min(config.min_rows_per_leaf, most, n_rows // MIN_LEAVES))
    return {
        "bin_construct_sample_cnt": BIN_SAMPLE_ROWS,
        "min_data_in_leaf": rows_per_leaf,
        "min_data_in_bin": min(3, rows_per_leaf),
        "force_row_wise": True,
        "deterministic": True,
        "verbosity": -1,
    }
