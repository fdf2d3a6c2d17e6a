"""Errors of scores as a Gaussian process over configs: their correlations and draws of them.

A score is a guess of the runtime, and the errors of similar configs correlate: by the logarithms of
tile sizes, or by the share of nodes with equal layouts (Rasmussen and Williams, 2006).

c configs, m candidates.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.graphs.packing import PackedConfigs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Only the configs with the best scores are candidates. This bounds time and memory.
MAX_CANDIDATES = 256
# Length scale of the correlation of errors: for tiles in logarithms of sizes, for layouts in the
# share of nodes with different layouts.
TILE_LENGTH, LAYOUT_LENGTH = 2.0, 0.3
# With 512 draws the choice still depends on the seed.
N_DRAWS = 4096
# Columns of config_feat with tile sizes. The other columns are sums and products of these.
TILE_SIZES = (*range(6), *range(8, 14), *range(16, 22))
# Added to the variances, because the correlation of equal rows has no Cholesky factor.
JITTER = 1e-6


def correlations(graph: Graph, rows: Ints, scales: Sequence[float] = (1.0,)) -> list[Floats]:
    """Return the correlation of the errors of some configs, (m, m), for each scale.

    Args:
        rows: Rows of the configs, (m,).
        scales: Length scales, relative to TILE_LENGTH and LAYOUT_LENGTH.
    """
    if isinstance(graph, TileGraph):
        places = tile_places(graph.config_feat)[rows]
        return [tile_correlation(places / scale) for scale in scales]
    assert isinstance(graph, LayoutGraph)
    distances = layout_distances(graph.configs, rows)
    return [np.exp(-distances / (LAYOUT_LENGTH * scale)) for scale in scales]


def tile_places(config_feat: NDArray[np.float32]) -> Floats:
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


def tile_correlation(places: Floats) -> Floats:
    """Return the correlation of the errors of tiles, (m, m).

    Args:
        places: Logarithms of tile sizes, (m, d).
    """
    squares = np.square(places).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * places @ places.T, 0)
    np.fill_diagonal(distances, 0)
    return np.exp(-distances / (2 * TILE_LENGTH**2))


def layout_distances(configs: PackedConfigs, rows: Ints) -> Floats:
    """Return the share of nodes with different layouts, for each pair of configs.

    Returns:
        Shares, (m, m) float64, 0 to 1.
    """
    # Nodes whose layouts always change together share a column.
    places = configs.places(rows)
    nodes = np.bincount(configs.codebooks.column_of, minlength=places.shape[1]).astype(np.float32)
    differing = np.stack([(places != row) @ nodes for row in places])
    return differing.astype(np.float64) / max(1, configs.n_configurable)


@cache
def normal_draws() -> NDArray[np.float32]:
    """Return normal numbers, (256, draws / 2), which are equal for every graph."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((MAX_CANDIDATES, N_DRAWS // 2), dtype=np.float32)


def draw_errors(covariance: Floats) -> NDArray[np.float32]:
    """Draw errors of m candidates. Each draw also has its opposite, so their mean is exactly 0.

    Args:
        covariance: Covariance of the errors, (m, m), of full rank.

    Returns:
        Errors, (m, draws).
    """
    factor = np.linalg.cholesky(covariance).astype(np.float32)
    errors = factor @ normal_draws()[: len(covariance)]
    return np.concatenate([errors, -errors], axis=1)


def lowest_minimum(
    runtimes: NDArray[np.float32], fastest: NDArray[np.float32], first: Sequence[int], k: int
) -> list[int]:
    """Choose configs in turn, so that the best of them has the lowest mean runtime.

    Args:
        runtimes: Draws of the runtimes of m candidates, (m, draws).
        fastest: Runtime of the best config so far in each draw, (draws,).
        first: Positions that come first, part of the k.
        k: Number of configs to choose, at most m.

    Returns:
        Positions of the k configs, in the order of choice.
    """
    picks, minimum = [*first], np.empty_like(runtimes)
    while len(picks) < k:
        means = np.minimum(fastest, runtimes, out=minimum).mean(axis=1)  # (m,)
        means[picks] = np.inf
        picks.append(int(np.argmin(means)))
        fastest = np.minimum(fastest, runtimes[picks[-1]])
    return picks
