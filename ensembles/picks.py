"""Choose the configs that are worth a measurement.

A user measures k configs and keeps the fastest one. The k configs with the lowest scores are
mostly similar, so an error of the model about one of them affects all. The choice here is
diversified: a score is a guess of the runtime, and the errors of similar configs correlate.
The errors are a Gaussian process over the logarithms of tile sizes, or over the share of nodes with
equal layouts. Each of the k configs in turn minimises the expected runtime of the best one.
Bayesian optimisation chooses batches of experiments in this way (expected improvement of several
points; Ginsbourger, Le Riche and Carraro, 2010).

The choice does not change scores. A submission uses it for the five configs of a tile row, and
`rank --measure K` prints it.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from common.machine import thread_limits
from data.graphs.graph import Graph, LayoutGraph, TileGraph, config_hashes, distinct_configs
from data.graphs.packing import PackedConfigs, n_usual

# Only the configs with the best scores are candidates. This bounds time and memory.
MAX_CANDIDATES = 256
# Layouts with high scores are no good candidates. The slowdown of the best of five is 1.0067 for a
# share of .15 and .2, 1.0069 for .3, and 1.0073 for all (held-out families of the sample).
LAYOUT_CANDIDATE_SHARE = 0.2
# Standard deviation of the error of a score, in standard deviations of the graph's scores. With an
# error of 0, the configs with the lowest scores are chosen. A run may choose another one for tiles.
TILE_ERROR, LAYOUT_ERROR = 2.0, 1.0
TILE_ERRORS = (0.0, 0.5, 1.0, 2.0)
# Length scale of the correlation of errors: for tiles in logarithms of sizes, for layouts in the
# share of nodes with different layouts.
TILE_LENGTH, LAYOUT_LENGTH = 2.0, 0.3
# The tile score of recipe cpu on families of the sample is .982, and .951 without diversity. With
# errors of 1 and 3 and lengths of 1.5 to 3 it is .978 to .986. The slowdown of five layouts is
# 1.008, and 1.023 without diversity. With errors of .5 and 2 and lengths of .1 and 1 it is 1.009 to
# 1.010.
# With 512 draws the choice still depends on the seed.
N_DRAWS = 4096
# Columns of config_feat with tile sizes. The other columns are sums and products of these.
TILE_SIZES = (*range(6), *range(8, 14), *range(16, 22))
# Added to the variances, because the correlation of equal rows has no Cholesky factor.
JITTER = 1e-6


def top_k_to_measure(
    scores: NDArray[np.float32], graph: Graph, k: int, tile_error: float = TILE_ERROR
) -> NDArray[np.int64]:
    """Choose k distinct and diversified configs of a graph.

    Args:
        scores: Finite score of each config, (c,), lower = faster.
        graph: Graph of the c configs. Its runtimes are not read.
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
            places = tile_places(graph.config_feat[rows])[:MAX_CANDIDATES]
            correlation, error = tile_correlation(places), tile_error
        else:
            assert isinstance(graph, LayoutGraph)
            n_candidates = max(k, math.ceil(LAYOUT_CANDIDATE_SHARE * len(rows)))
            candidates = rows[: min(n_candidates, MAX_CANDIDATES)]
            distances = layout_distances(graph.configs, candidates)
            correlation, error = np.exp(-distances / LAYOUT_LENGTH), LAYOUT_ERROR
            first = first_layouts(graph.configs, candidates)
        chosen = lowest_expected_minimum(scores[rows], correlation, error, k, first)
    return np.concatenate([rows[chosen], np.delete(rows, chosen)])[:k]


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
    factor = np.linalg.cholesky(correlation + JITTER * np.eye(m)).astype(np.float32)
    errors = factor @ normal_draws()[:m]
    # Each draw also has its opposite, so the mean is exactly 0.
    errors = np.concatenate([errors, -errors], axis=1)
    runtimes = guess[:m, None].astype(np.float32) + error * errors  # (m, draws)
    return np.array(lowest_minimum(runtimes, runtimes[first], [first], min(k, m)))


def lowest_minimum(
    runtimes: NDArray[np.float32], fastest: NDArray[np.float32], chosen: list[int], k: int
) -> list[int]:
    """Choose configs in turn, so that the best of them has the lowest mean runtime.

    Args:
        runtimes: Draws of the runtimes of m configs, (m, draws).
        fastest: Runtime of the best known config in each draw, (draws,).
        chosen: Positions that are chosen already, part of the k.
        k: Number of configs to choose, at most m.

    Returns:
        Positions of the k configs, in the order of choice.
    """
    chosen, minimum = [*chosen], np.empty_like(runtimes)
    while len(chosen) < k:
        expected = np.minimum(fastest, runtimes, out=minimum).mean(axis=1)  # (m,)
        expected[chosen] = np.inf
        chosen.append(int(np.argmin(expected)))
        fastest = np.minimum(fastest, runtimes[chosen[-1]])
    return chosen


@cache
def normal_draws() -> NDArray[np.float32]:
    """Return normal numbers, (256, draws / 2), which are equal for every graph."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((MAX_CANDIDATES, N_DRAWS // 2), dtype=np.float32)


def tile_places(config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the logarithms of tile sizes.

    Args:
        config_feat: Tile configs, (c, 24).

    Returns:
        Logarithms, (c, d) float64, with a column per dimension that changes. A dimension that
        several tensors share has one column.
    """
    logarithms = np.log1p(np.abs(config_feat[:, TILE_SIZES].astype(np.float64)))
    relative = np.round(logarithms - logarithms.min(axis=0), 6)
    columns = {column.tobytes(): column for column in relative.T if column.any()}
    return np.array([*columns.values()]).reshape(len(columns), len(config_feat)).T


def tile_correlation(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation of the errors of tiles, (m, m).

    Args:
        places: Logarithms of tile sizes, (m, d).
    """
    squares = np.square(places).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * places @ places.T, 0)
    np.fill_diagonal(distances, 0)
    return np.exp(-distances / (2 * TILE_LENGTH**2))


def layout_distances(configs: PackedConfigs, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of nodes with different layouts, for each pair of configs.

    Returns:
        Shares, (m, m) float64, 0 to 1.
    """
    # Nodes whose layouts always change together share a column.
    places = configs.places(rows)
    nodes = np.bincount(configs.codebooks.column_of, minlength=places.shape[1]).astype(np.float32)
    differing = np.stack([(places != row) @ nodes for row in places])
    return differing.astype(np.float64) / max(1, configs.n_configurable)


def first_layouts(configs: PackedConfigs, rows: NDArray[np.int64]) -> int:
    """Return the position of the config to choose first.

    A named usual layout (`n_usual`) needs no copy, so models score it like an open choice of the
    compiler. But the compiler must respect a named layout, which sometimes avoids a bad choice.
    If the best config has only usual layouts, the config that names most of them comes first.
    """
    named = n_usual(configs.vectors)[configs.vector_ids(rows)]  # (m, k)
    has_only_usual = np.all(named >= 0, axis=1)
    return int(np.where(has_only_usual, named.sum(axis=1), -1).argmax()) * int(has_only_usual[0])
