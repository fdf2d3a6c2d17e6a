"""How near the best the first K picks come, where each config was put: what pages show."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from submissions.labels import Labels

CURVE_PICKS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100)
POINTS_PER_GRAPH = 300
FIRST_POINTS = 10  # of a graph, all of which are kept
RANKS_SCHEMA: dict[str, Any] = {
    "collection": pl.String,
    "graph": pl.String,
    "rank": pl.UInt32,
    "slowdown": pl.Float32,
    "config": pl.UInt32,
    "runtime_ns": pl.Int64,
    "members": pl.List(pl.Float32),
}

BEST_SCHEMA: dict[str, Any] = {
    "collection": pl.String,
    "graph": pl.String,
    "configs": pl.List(pl.Int64),  # rows of the file, predicted fastest first
    "against": pl.Int64,  # the config that they are compared with; of tiles none
    "names": pl.List(pl.String),  # of what differs, such as a node
    "cells": pl.List(pl.List(pl.String)),  # how each config sets it; "" = as the other one
    "n_more": pl.Int64,  # how many names were left out
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
        at = np.minimum(CURVE_PICKS, len(ranking)) - 1
        curves.append(np.minimum.accumulate(runtime[ranking])[at] / runtime.min())
    means: list[float] = np.mean(curves, axis=0).round(6).tolist()
    return means


def rank_points(
    collection: str,
    graph: str,
    ranking: NDArray[np.int64],
    labels: Labels,
    scored: Sequence[pl.DataFrame] = (),
) -> pl.DataFrame:
    """Return where a graph's configs were put and how slow they are.

    Of more than 300 these many evenly by rank, and the first ten, and the fastest.

    Args:
        ranking: (c,) int64 places of configs, predicted fastest first.
        scored: of the blend, then of its members: `config`, the row in the graph's file, and
            `score` of the config at each place; none where rows are places.

    Returns:
        Columns of RANKS_SCHEMA; `slowdown` is the config's runtime over the fastest one's.
    """
    runtime = labels.runtime
    some = np.linspace(0, len(ranking) - 1, POINTS_PER_GRAPH).round()
    first = [*range(min(FIRST_POINTS, len(ranking))), runtime[ranking].argmin()]
    ranks = np.union1d(some, first).astype(np.uint32)
    places = ranking[ranks]
    scores = [table["score"].to_numpy()[places] for table in scored[1:]]
    configs = scored[0]["config"].to_numpy()[places] if scored else places.astype(np.uint32)
    return pl.DataFrame(
        {
            "collection": [collection] * len(ranks),
            "graph": [graph] * len(ranks),
            "rank": ranks,
            "slowdown": (runtime[places] / runtime.min()).astype(np.float32),
            "config": configs,
            "runtime_ns": labels.runtime_ns[places],
            "members": np.reshape(scores, (-1, len(ranks))).T.tolist(),
        },
        schema=RANKS_SCHEMA,
    )
