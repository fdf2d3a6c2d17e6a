"""A linear stacker: weights by which the members' scores tell the order of the configs.

Ridge regression within graphs, as of models.trees.linear, with weights that are not negative; that
bound is what made stacking work in Breiman, "Stacked Regressions", Machine Learning 24, 1996.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ensembles.choice.scored_graphs import ScoredGraphs

Floats = NDArray[np.float64]

PENALTY = 0.01  # of the mean square of a member's scores within a graph


class Moments(NamedTuple):
    """What a regression needs of each graph.

    Attributes:
        squares: (g, m, m) mean products of the members' centred scores.
        products: (g, m) mean products of these with the centred rank by runtime, standardised.
    """

    squares: Floats
    products: Floats


def moments(graphs: ScoredGraphs) -> Moments:
    """Sum up each graph, so that weights for any selection of graphs are quick to fit.

    Least squares on centred scores and ranks of a graph is the same as least squares on the
    differences of all its pairs, up to a factor.
    """
    from scipy.stats import rankdata

    squares, products = [], []
    for rows in graphs.rows():
        scores = graphs.scores[rows] - graphs.scores[rows].mean(axis=0)
        ranks = rankdata(graphs.runtime[rows])
        ranks = (ranks - ranks.mean()) / max(ranks.std(), 1e-12)
        squares.append(scores.T @ scores / len(scores))
        products.append(scores.T @ ranks / len(scores))
    return Moments(np.asarray(squares), np.asarray(products))


def stacked_weights(per_graph: Moments) -> Floats:
    """Fit weights to graphs that count alike; (m,), none negative.

    Members that all rank the wrong way round get equal weights, since none helps.
    """
    from scipy.optimize import nnls

    square, product = per_graph.squares.mean(axis=0), per_graph.products.mean(axis=0)
    n_members = len(product)
    square = square + max(PENALTY * float(np.trace(square)) / n_members, 1e-12) * np.eye(n_members)
    root = np.linalg.cholesky(
        square
    ).T  # square = rootᵀ root, so |root w - rootᵀ⁻¹ product| is least
    weights, _ = nnls(root, np.linalg.solve(root.T, product))
    return np.asarray(weights) if weights.sum() > 0 else np.ones(n_members)
