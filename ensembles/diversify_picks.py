"""Picks chosen together: the first ones cover for each other where a model is mistaken.

Who measures five picks keeps the best of them. A model's five best configs are mostly alike, so
where it is mistaken about one it is mistaken about all five. Here a score is a guess of the runtime
whose error configs share the more, the more alike they are: a Gaussian process over the logarithms
of a tile's bounds, or over the nodes to which configs give the same layouts. Chosen are the picks
whose best is expected to be the fastest, one after the other over draws of the error: the first is
the best by score, the next the one that helps most where the others are slow. Bayesian optimisation
chooses batches of experiments so (expected improvement of several points at once; Ginsbourger, Le
Riche and Carraro, 2010).
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError
from common.machine import thread_limits
from data.graphs.distinct import config_hashes, distinct_rows
from data.graphs.graph import Graph, LayoutGraph, TileGraph
from data.packing import PackedConfigs, n_usual
from data.read import read_graph
from data.tree import GraphFile

# Chosen together; the others follow by score. The best of ten tiles is reported as well, while
# layouts are judged by their whole order.
N_TILE_PICKS, N_LAYOUT_PICKS = 10, 5
# Of layouts one in so many distinct configs, up to five, is a pick: of a short file five would
# cost the order twice as much for no better best of five (families of the sample's first 52).
CONFIGS_PER_PICK = 25
N_CANDIDATES = 256  # best by score, of which is picked; bounds time and memory
# Of layouts no more than this share, or a pick from far down costs the order more than it gains:
# slowdown@5 1.0067 for .15 and .2, 1.0069 for .3, 1.0073 for all (families of the sample held out).
LAYOUT_SHARE = 0.2
N_DRAWS = 4096  # with 512 the picks still depend on which are drawn
BOUNDS = (*range(6), *range(8, 14), *range(16, 22))  # of config_feat; sums and products left out
JITTER = 1e-6  # added to the variances: of configs that are alike no Cholesky factor can be found


class PickDiversity(NamedTuple):
    """How far apart picks are chosen."""

    error: float  # standard deviation of a score's error, in standard deviations of the scores
    # How far configs are apart where errors part: tiles in logarithms of their bounds, layouts in
    # the share of nodes that they lay out differently.
    length: float


def tile_picks(
    scores: NDArray[np.float32], config_feat: NDArray[np.float32], diversity: PickDiversity
) -> NDArray[np.int64]:
    """Choose picks among the distinct configs of a kernel.

    Args:
        scores: (c,) finite, lower = faster.
        config_feat: (c, 24) tile configs, all distinct.
        diversity: how far; an error of 0 picks by score.

    Returns:
        (min(10, c),) int64 rows in the order they are picked.
    """
    # By score, then by content: trees give many equal scores, and rows may come in any order.
    order = np.lexsort((*config_feat.T[::-1], scores))
    places = tile_places(config_feat[order])[:N_CANDIDATES]
    with thread_limits(1, "blas"):  # the products are small: threads would wait for each other
        squares = np.square(places).sum(axis=1)
        distances = np.maximum(squares[:, None] + squares - 2 * places @ places.T, 0)
        np.fill_diagonal(distances, 0)
        shared = np.exp(-distances / (2 * diversity.length**2))
        return order[diversify_picks(scores[order], shared, diversity.error, N_TILE_PICKS)]


def layout_picks(
    scores: NDArray[np.float32],
    configs: PackedConfigs,
    rows: NDArray[np.int64],
    diversity: PickDiversity,
) -> NDArray[np.int64]:
    """Choose picks among the configs of a program at `rows` (c,), all distinct, as `tile_picks`.

    Returns:
        One for each 25 configs, 1 to 5; int64 positions in `rows` in the order they are picked.
    """
    order = np.lexsort((configs.content_hashes()[rows], scores))
    with thread_limits(1, "blas"):
        n_picks = min(N_LAYOUT_PICKS, max(1, len(rows) // CONFIGS_PER_PICK))
        n_candidates = min(N_CANDIDATES, math.ceil(LAYOUT_SHARE * len(rows)))
        candidates = rows[order[:n_candidates]]
        shared = np.exp(-layout_distances(configs, candidates) / diversity.length)
        first = first_layouts(configs, candidates)
        picked = diversify_picks(scores[order], shared, diversity.error, n_picks, first)
        return order[picked]


def first_layouts(configs: PackedConfigs, rows: NDArray[np.int64]) -> int:
    """Return which of the configs at `rows` (m,), the best first, is picked first.

    The best; but where that asks for nothing unusual, the one that names the most layouts of those
    that do not. To name a usual layout (`n_usual`) costs no copy, so that models take it for the
    same as leaving all to the compiler. But it stays where it is named, and now and then that saves
    what the compiler's own choice would have lost.
    """
    named = n_usual(configs.vectors)[configs.vector_ids(rows)]  # (m, k)
    asks_nothing = np.all(named >= 0, axis=1)
    return int(np.where(asks_nothing, named.sum(axis=1), -1).argmax()) * int(asks_nothing[0])


def diversify_picks(
    scores: NDArray[np.float32],
    shared: NDArray[np.float64],
    error: float,
    n_picks: int,
    first: int = 0,
) -> NDArray[np.int64]:
    """Choose picks among configs that are in order.

    Costs O(c + m³ + m² · draws + picks · m · draws).

    Args:
        scores: (c,) ascending, lower = faster.
        shared: (m, m) correlation of the errors of the first m, of which is picked.
        error: standard deviation of a score's error, in standard deviations of the scores.
        first: position of the first pick.

    Returns:
        (min(n_picks, m),) int64 positions in the order they are picked.
    """
    guess = scores.astype(np.float64) - scores.mean(dtype=np.float64)
    guess /= guess.std() or 1
    draws = guess[: len(shared), None].astype(np.float32) + error * _errors(shared)  # (m, draws)
    picked, fastest = [first], draws[first]  # errors are 0 on average
    either = np.empty_like(draws)
    for _ in range(1, min(n_picks, len(draws))):
        expected = np.minimum(fastest, draws, out=either).mean(axis=1)  # (m,)
        expected[picked] = np.inf
        picked.append(int(np.argmin(expected)))
        fastest = np.minimum(fastest, draws[picked[-1]])
    return np.array(picked)


def tile_places(config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Place tile configs (c, 24) by the logarithms of their bounds; (c, d) float64.

    A dimension that several tensors share has the same bounds in each: it counts once, and one that
    no config changes not at all.
    """
    logarithms = np.log1p(np.abs(config_feat[:, BOUNDS].astype(np.float64)))
    relative = np.round(logarithms - logarithms.min(axis=0), 6)
    columns = {column.tobytes(): column for column in relative.T if column.any()}
    return np.array([*columns.values()]).reshape(len(columns), len(config_feat)).T


def layout_distances(configs: PackedConfigs, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the shares of nodes whose layouts differ between configs at `rows` (m,); (m, m)."""
    places = configs.places(rows)  # by column, which tied nodes share
    nodes = np.bincount(configs.alphabets.column_of, minlength=places.shape[1]).astype(np.float32)
    differing = np.stack([(places != own) @ nodes for own in places])
    return differing.astype(np.float64) / max(1, configs.n_configurable)


def _errors(shared: NDArray[np.float64]) -> NDArray[np.float32]:
    """Draw errors of configs from their correlation (m, m); (m, draws)."""
    factor = np.linalg.cholesky(shared + JITTER * np.eye(len(shared)))
    drawn = factor.astype(np.float32) @ _normals()[: len(shared)]
    return np.concatenate([drawn, -drawn], axis=1)  # each with its opposite: 0 on average


@cache
def _normals() -> NDArray[np.float32]:
    """Return (256, draws / 2): the same for every graph, so that nothing else decides picks."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((N_CANDIDATES, N_DRAWS // 2), dtype=np.float32)


def diversify_scores(
    graph: Graph,
    scores: NDArray[np.float32],
    diversity: PickDiversity,
    rows: NDArray[np.int64] | None = None,
) -> NDArray[np.float32]:
    """Score configs (c,) so that the picks come first, and then the others as before; (c,) float32.

    Equal tiles have equal scores. Of equal layouts, of which files hold many, the first alone is a
    pick, and the others stay among the others: nothing is learned from compiling a config twice.

    Args:
        rows: (c,) int64 which of the graph's configs are scored; None = all.
    """
    rows = np.arange(graph.n_configs) if rows is None else rows
    first, group = distinct_rows(config_hashes(graph)[rows])
    own = scores[first]
    place = np.unique(own, return_inverse=True)[1]
    if isinstance(graph, TileGraph):
        picked = tile_picks(own, graph.config_feat[rows[first]], diversity)
        place[picked] = np.arange(len(picked)) - len(picked)
    else:
        assert isinstance(graph, LayoutGraph)
        picked = layout_picks(own, graph.configs, rows[first], diversity)
    by_row = place[group]
    by_row[first[picked]] = np.arange(len(picked)) - len(picked)
    return (by_row + len(picked)).astype(np.float32)


def diversify_table(
    scores: pl.DataFrame, files: Sequence[GraphFile], diversity: PickDiversity
) -> pl.DataFrame:
    """Diversify the picks of a table, graph by graph; its rows keep their order.

    Raises:
        PipelineError: a graph has no file, a damaged one, or other configs; of layouts some may be
            scored alone.
    """
    by_name = {file.name: file for file in files}
    tables = []
    numbered = scores.with_row_index("number")
    for (name,), table in numbered.group_by("graph", maintain_order=True):
        if name not in by_name:
            raise PipelineError(f"graph {name}: scored, but there is no file of it to read")
        graph = read_graph(by_name[str(name)])
        hashes = config_hashes(graph)
        first, _ = distinct_rows(hashes)
        distinct = pl.DataFrame({"config_hash": hashes[first], "row": first})
        known = table.join(distinct, on="config_hash", how="left", maintain_order="left")
        is_part = isinstance(graph, TileGraph) and known["row"].n_unique() != distinct.height
        if known["row"].null_count() or is_part:
            raise PipelineError(
                f"{graph.file.path}: holds other configs than the scores; expected the same data"
            )
        rows = known["row"].to_numpy()
        placed = diversify_scores(graph, known["score"].to_numpy(), diversity, rows)
        tables.append(table.with_columns(score=placed))
    return pl.concat([numbered.clear(), *tables]).sort("number").drop("number")
