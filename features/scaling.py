"""Scale node features by logarithm, by standardisation, or by both."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import N_NODE_FEATURES
from data.graphs.node_columns import CATEGORICAL

SCALINGS = ("log1p", "standardise", "log1p-standardise")
# Standardised values beyond this limit carry no more information than "very large".
MAX_DEVIATIONS = 10.0


@dataclass(frozen=True)
class NodeScaler:
    """Scale the 140 node features by numbers that were learned from train graphs.

    Flags and dimension numbers stay unchanged. Columns that are constant over the train split
    become 0, because their values in other graphs would be arbitrary.
    """

    scaling: str  # one of SCALINGS
    shift: NDArray[np.float32]  # (140,) subtracted after the logarithm
    factor: NDArray[np.float32]  # (140,) multiplied after the shift; 0 for constant columns

    def __call__(self, node_feat: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scale stock features (n, 140), and clip them to ±10 if the scaling standardises."""
        # The product may overflow float32, but then it is clipped.
        with np.errstate(over="ignore"):
            values = (_logarithm(node_feat, self.scaling) - self.shift) * self.factor
        # A logarithm without standardisation exceeds 10 at 22,026, which is a usual size.
        if self.scaling != "log1p":
            values = np.clip(values, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return values.astype(np.float32)


def fit_node_scaler(node_feats: Iterable[NDArray[np.float32]], *, scaling: str) -> NodeScaler:
    """Learn a scaler in one pass over the stock features, (n, 140), of each train graph."""
    total = np.zeros(N_NODE_FEATURES)
    total_square = np.zeros(N_NODE_FEATURES)
    low = np.full(N_NODE_FEATURES, np.inf)
    high = np.full(N_NODE_FEATURES, -np.inf)
    n_nodes = 0
    for node_feat in node_feats:
        values = _logarithm(node_feat, scaling).astype(np.float64)
        total += values.sum(axis=0)
        total_square += np.square(values).sum(axis=0)
        low = np.minimum(low, values.min(axis=0))
        high = np.maximum(high, values.max(axis=0))
        n_nodes += len(values)
    if n_nodes == 0:
        raise PipelineError("node features: no train graph to learn the scaling from")
    shift = np.zeros(N_NODE_FEATURES)
    factor = (high > low).astype(np.float64)
    if scaling != "log1p":
        numeric = np.setdiff1d(np.flatnonzero(high > low), CATEGORICAL)
        mean = total[numeric] / n_nodes
        variance = np.maximum(total_square[numeric] / n_nodes - mean**2, 1e-12)
        shift[numeric] = mean
        factor[numeric] = 1 / np.sqrt(variance)
    return NodeScaler(scaling, shift.astype(np.float32), factor.astype(np.float32))


def _logarithm(node_feat: NDArray[np.float32], scaling: str) -> NDArray[np.float32]:
    if scaling == "standardise":
        return node_feat
    logarithm = np.sign(node_feat) * np.log1p(np.abs(node_feat))
    logarithm[:, CATEGORICAL] = node_feat[:, CATEGORICAL]
    return logarithm.astype(np.float32)
