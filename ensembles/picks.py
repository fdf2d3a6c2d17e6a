"""Choose the configs that are worth a measurement.

A user measures k configs and keeps the fastest one. The k configs with the lowest scores are
mostly similar, so an error of the model about one of them affects all. The choice here is
diversified: the errors of similar configs correlate (ensembles.score_errors), and each of the k
configs in turn minimises the expected runtime of the best one.
Bayesian optimisation chooses batches of experiments in this way (expected improvement of several
points; Ginsbourger, Le Riche and Carraro, 2010).

The choice does not change scores. A submission uses it for the five configs of a tile row, and
`rank --measure K` prints it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from common.machine import thread_limits
from data.graphs.graph import Graph, LayoutGraph, TileGraph, config_hashes, distinct_configs
from data.graphs.packing import PackedConfigs, n_usual
from ensembles.score_errors import (
    JITTER,
    MAX_CANDIDATES,
    correlations,
    draw_errors,
    lowest_minimum,
)

# Layouts with high scores are no good candidates. The slowdown of the best of five is 1.0067 for a
# share of .15 and .2, 1.0069 for .3, and 1.0073 for all (held-out families of the sample).
LAYOUT_CANDIDATE_SHARE = 0.2
# Standard deviation of the error of a score, in standard deviations of the graph's scores. With an
# error of 0, the configs with the lowest scores are chosen. A run may choose another one for tiles.
TILE_ERROR, LAYOUT_ERROR = 2.0, 1.0
TILE_ERRORS = (0.0, 0.5, 1.0, 2.0)
# The tile score of recipe cpu on families of the sample is .982, and .951 without diversity. With
# errors of 1 and 3 and lengths of 1.5 to 3 it is .978 to .986. The slowdown of five layouts is
# 1.008, and 1.023 without diversity. With errors of .5 and 2 and lengths of .1 and 1 it is 1.009 to
# 1.010.


def top_k_to_measure(
    scores: NDArray[np.float32], graph: Graph, k: int, tile_error: float = TILE_ERROR
) -> NDArray[np.int64]:
    """Choose k distinct and diversified configs of a graph.

    Args:
        scores: Finite score of each config, (c,), lower = faster.
        graph: Graph of the configs. Its runtimes are not read.
        k: Number of configs to choose, at least 1.
        tile_error: Error of the scores of tiles, one of TILE_ERRORS.

    Returns:
        Rows, (min(k, distinct configs),) int64, in the order of choice.
    """
    distinct, _ = distinct_configs(graph)
    # Trees give many equal scores, so the content of configs breaks ties for any order of the file.
    if isinstance(graph, TileGraph):
        order = np.lexsort((*graph.config_feat[distinct].T[::-1], scores[distinct]))
    else:
        order = np.lexsort((config_hashes(graph)[distinct], scores[distinct]))
    rows, first = distinct[order], 0
    # The matrices are small, so several threads would only wait for each other.
    with thread_limits(1, "blas"):
        if isinstance(graph, TileGraph):
            candidates, error = rows[:MAX_CANDIDATES], tile_error
        else:
            assert isinstance(graph, LayoutGraph)
            n_candidates = max(k, math.ceil(LAYOUT_CANDIDATE_SHARE * len(rows)))
            candidates = rows[: min(n_candidates, MAX_CANDIDATES)]
            error, first = LAYOUT_ERROR, first_layouts(graph.configs, candidates)
        [correlation] = correlations(graph, candidates)
        picks = lowest_expected_minimum(scores[rows], correlation, error, k, first)
    return np.concatenate([rows[picks], np.delete(rows, picks)])[:k]


def lowest_expected_minimum(
    scores: NDArray[np.float32],
    correlation: NDArray[np.float64],
    error: float,
    k: int,
    first: int = 0,
) -> NDArray[np.int64]:
    """Choose k configs in turn, so that the best of them has the lowest expected runtime.

    The cost is O(c + m³ + m² · draws + k · m · draws).

    Args:
        scores: Scores of all configs, (c,) ascending.
        correlation: Correlation of the errors of the m candidates, (m, m). The candidates are the
            first m configs.
        error: Standard deviation of a score's error, in standard deviations of the scores.
        k: Number of configs to choose.
        first: Position of the config that is chosen first.

    Returns:
        Positions, (min(k, m),) int64, in the order of choice.
    """
    guess = scores.astype(np.float64) - scores.mean(dtype=np.float64)
    guess /= guess.std() or 1
    m = len(correlation)
    errors = draw_errors(correlation + JITTER * np.eye(m))
    runtimes = guess[:m, None].astype(np.float32) + error * errors  # (m, draws)
    return np.array(lowest_minimum(runtimes, runtimes[first], [first], min(k, m)))


def first_layouts(configs: PackedConfigs, rows: NDArray[np.int64]) -> int:
    """Return the position of the config to choose first.

    A named usual layout (`n_usual`) needs no copy, so models score it like an open choice of the
    compiler. But the compiler must respect a named layout, which sometimes avoids a bad choice.
    If the best config has only usual layouts, the config that names most of them comes first.
    """
    n_named = n_usual(configs.vectors)[configs.vector_ids(rows)]  # (m, k)
    has_only_usual = np.all(n_named >= 0, axis=1)
    return int(np.where(has_only_usual, n_named.sum(axis=1), -1).argmax()) * int(has_only_usual[0])
