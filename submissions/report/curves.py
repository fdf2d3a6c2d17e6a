"""How near the best the first K picks come, and where each config was put: what pictures show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.checksums import read_table, write_table
from submissions.labels import Labels

CURVE_PICKS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100)
POINTS_PER_GRAPH = 300
RANKS_SCHEMA = {
    "collection": pl.String,
    "graph": pl.String,
    "rank": pl.UInt32,
    "slowdown": pl.Float32,
}


def slowdown_curve(
    rankings: Sequence[NDArray[np.int64]], runtimes: Sequence[NDArray[Any]]
) -> list[float]:
    """Return the mean over graphs of slowdown@K for each K of CURVE_PICKS.

    Args:
        rankings: (c,) int64 config indices of each of g graphs, predicted fastest first.
        runtimes: (c,) measured, positive, of each.
    """
    curves = []
    for ranking, runtime in zip(rankings, runtimes, strict=True):
        best_so_far = np.minimum.accumulate(runtime[ranking]) / runtime.min()
        at = np.minimum(CURVE_PICKS, len(best_so_far)) - 1
        curves.append(best_so_far[at])
    means: list[float] = np.mean(curves, axis=0).round(6).tolist()
    return means


def rank_points(
    collection: str, graph: str, ranking: NDArray[np.int64], labels: Labels
) -> pl.DataFrame:
    """Return where a graph's configs were put and how slow they are: at most 300, evenly by rank.

    Args:
        ranking: (c,) int64 config indices, predicted fastest first.

    Returns:
        Columns of RANKS_SCHEMA; `slowdown` is the config's runtime over the fastest one's.
    """
    runtime = labels.runtime
    ranks = np.unique(np.linspace(0, len(ranking) - 1, POINTS_PER_GRAPH).round().astype(np.uint32))
    return pl.DataFrame(
        {
            "collection": [collection] * len(ranks),
            "graph": [graph] * len(ranks),
            "rank": ranks,
            "slowdown": (runtime[ranking[ranks]] / runtime.min()).astype(np.float32),
        },
        schema=RANKS_SCHEMA,
    )


def write_ranks(path: Path, tables: Sequence[pl.DataFrame]) -> None:
    """Write the points of several graphs as parquet, whole or not at all."""
    write_table(path, pl.concat([pl.DataFrame(schema=RANKS_SCHEMA), *tables]))


def read_ranks(path: Path) -> pl.DataFrame | None:
    """Read what `write_ranks` wrote; None where there is no file.

    Raises:
        PipelineError: the file is damaged, or has other columns.
    """
    return read_table(path, RANKS_SCHEMA) if path.exists() else None
