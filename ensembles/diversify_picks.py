"""Tile picks chosen together: the first ones cover for each other where a model is mistaken.

Only the best of five picks counts. A model's five best tiles are mostly alike, so where it is
mistaken about one it is mistaken about all five. Here a score is a guess of the runtime whose error
tiles share the more, the more alike they are: a Gaussian process over the logarithms of a tile's
bounds. Chosen are the picks whose best is expected to be the fastest, one after the other over
draws of the error: the first is the best by score, the next the one that helps most where the
others are slow. Bayesian optimisation chooses batches of experiments so (expected improvement of
several points at once; Ginsbourger, Le Riche and Carraro, 2010).
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from common.errors import PipelineError
from data.graphs.distinct import distinct_configs
from data.graphs.graph import TileGraph
from data.read import read_tile
from data.tree import GraphFile
from models.predict import scores_table

N_PICKS = 10  # chosen together: the best of ten is reported as well; the others follow by score
N_CANDIDATES = 256  # best by score, of which is picked; bounds time and memory
N_DRAWS = 4096  # with 512 the picks still depend on which are drawn
BOUNDS = (*range(6), *range(8, 14), *range(16, 22))  # of config_feat; sums and products left out
JITTER = 1e-6  # added to the variances: of tiles that are alike no Cholesky factor can be found


class PickDiversity(NamedTuple):
    """How far apart picks are chosen."""

    error: float  # standard deviation of a score's error, in standard deviations of the scores
    length: float  # how far tiles are apart, in logarithms of their bounds, where errors part


# Where no recipe says otherwise; chosen as the recipe `cpu` says.
USUAL_DIVERSITY = PickDiversity(error=2.0, length=2.0)


def diversify_picks(
    scores: NDArray[np.float32],
    config_feat: NDArray[np.float32],
    diversity: PickDiversity,
) -> NDArray[np.int64]:
    """Choose picks among the distinct configs of a kernel.

    Costs O(c log c + m³ + m² · draws + picks · m · draws) for m = min(c, 256) candidates.

    Args:
        scores: (c,) finite, lower = faster.
        config_feat: (c, 24) tile configs, all distinct.
        diversity: how far; an error of 0 picks by score.

    Returns:
        (min(10, m),) int64 rows in the order they are picked.
    """
    # By score, then by content: trees give many equal scores, and rows may come in any order.
    order = np.lexsort((*config_feat.T[::-1], scores))
    guess = _standardised(scores[order])[:N_CANDIDATES]
    places = tile_places(config_feat[order])[:N_CANDIDATES]
    order = order[:N_CANDIDATES]
    with _blas().limit(limits=1):  # the products are small: threads would wait for each other
        errors = diversity.error * _errors(places, diversity.length)
    draws = guess[:, None].astype(np.float32) + errors  # (m, draws)
    picked, fastest = [0], draws[0]  # errors are 0 on average
    either = np.empty_like(draws)
    for _ in range(1, min(N_PICKS, len(order))):
        expected = np.minimum(fastest, draws, out=either).mean(axis=1)  # (m,)
        expected[picked] = np.inf
        picked.append(int(np.argmin(expected)))
        fastest = np.minimum(fastest, draws[picked[-1]])
    return order[picked]


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


def tile_places(config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Place tile configs (c, 24) by the logarithms of their bounds; (c, d) float64.

    A dimension that several tensors share has the same bounds in each: it counts once, and one that
    no config changes not at all.
    """
    logarithms = np.log1p(np.abs(config_feat[:, BOUNDS].astype(np.float64)))
    relative = np.round(logarithms - logarithms.min(axis=0), 6)
    columns = {column.tobytes(): column for column in relative.T if column.any()}
    return np.array([*columns.values()]).reshape(len(columns), len(config_feat)).T


def _standardised(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    centred = scores.astype(np.float64) - scores.mean(dtype=np.float64)
    deviation = centred.std()
    return centred / deviation if deviation > 0 else centred


def _errors(places: NDArray[np.float64], length: float) -> NDArray[np.float32]:
    """Draw errors of configs at `places` (m, d), the more alike the nearer; (m, draws)."""
    squares = np.square(places).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * places @ places.T, 0)
    np.fill_diagonal(distances, 0)
    covariance = np.exp(-distances / (2 * length**2))
    factor = np.linalg.cholesky(covariance + JITTER * np.eye(len(places)))
    drawn = factor.astype(np.float32) @ _normals()[: len(places)]
    return np.concatenate([drawn, -drawn], axis=1)  # each with its opposite: 0 on average


@cache
def _normals() -> NDArray[np.float32]:
    """Return (256, draws / 2): the same for every kernel, so that nothing else decides picks."""
    generator = np.random.default_rng(0)
    return generator.standard_normal((N_CANDIDATES, N_DRAWS // 2), dtype=np.float32)


def diversify_scores(
    graph: TileGraph, scores: NDArray[np.float32], diversity: PickDiversity
) -> NDArray[np.float32]:
    """Score configs (c,) so that the picks come first, and then the others as before; (c,) float32.

    Equal configs have equal scores.
    """
    first, group = distinct_configs(graph)
    own = scores[first]
    picked = diversify_picks(own, graph.config_feat[first], diversity)
    place = np.unique(own, return_inverse=True)[1] + len(picked)
    place[picked] = np.arange(len(picked))
    return place.astype(np.float32)[group]


def diversify_table(
    scores: pl.DataFrame, files: Sequence[GraphFile], diversity: PickDiversity
) -> pl.DataFrame:
    """Diversify the picks of a table, kernel by kernel; its rows keep their order.

    Raises:
        PipelineError: a kernel has no file, two, a damaged one, or other configs.
    """
    by_name: dict[str, GraphFile] = {}
    for file in files:
        other = by_name.setdefault(file.name, file)
        if other != file:
            raise PipelineError(f"{file.path}: has the name of {other.path}; expected one of them")
    tables = []
    numbered = scores.with_row_index("number")
    for (name,), table in numbered.group_by("graph", maintain_order=True):
        if name not in by_name:
            raise PipelineError(f"kernel {name}: scored, but there is no file of it to read")
        graph = read_tile(by_name[str(name)])
        own = scores_table(graph, np.zeros(graph.n_configs, np.float32)).select("config_hash")
        rows = own.with_row_index("row").unique("config_hash", keep="first")
        known = table.join(rows, on="config_hash", how="left", maintain_order="left")
        found = known["row"].unique()
        if found.null_count() or len(found) != rows.height:
            raise PipelineError(
                f"{graph.file.path}: holds other configs than the scores; expected the same data"
            )
        by_row = np.empty(graph.n_configs, np.float32)
        by_row[known["row"].to_numpy()] = known["score"].to_numpy()
        first, group = distinct_configs(graph)
        placed = diversify_scores(graph, by_row[first][group], diversity)
        tables.append(table.with_columns(score=placed[known["row"].to_numpy()]))
    return pl.concat([numbered.clear(), *tables]).sort("number").drop("number")
