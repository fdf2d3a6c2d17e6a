"""Scaling of node features against plain two-pass statistics, learned from train graphs alone."""

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.node_columns import CATEGORICAL
from features.scaling import SCALINGS, fit_node_scaler
from tests.features.graphs import random_nodes

Nodes = NDArray[np.float32]


def train_graphs() -> list[Nodes]:
    rng = np.random.default_rng(0)
    return [random_nodes(rng, n) for n in (30, 1, 200)]


def two_passes(graphs: list[Nodes], scaling: str, node_feat: Nodes) -> NDArray[np.float64]:
    """Scale column by column, statistics from all train nodes at once."""

    def transform(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values if scaling == "standardise" else np.sign(values) * np.log1p(abs(values))

    train = np.concatenate(graphs).astype(np.float64)
    result = np.zeros(node_feat.shape)
    for column in range(140):
        seen, given = train[:, column], node_feat[:, column].astype(np.float64)
        if (seen == seen[0]).all():
            continue
        if column in CATEGORICAL:
            result[:, column] = given
        elif scaling == "log1p":
            result[:, column] = transform(given)
        else:
            seen = transform(seen)
            result[:, column] = (transform(given) - seen.mean()) / seen.std()
            result[:, column] = result[:, column].clip(-10, 10)
    return result


@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaling_equals_the_two_pass_reference(scaling: str) -> None:
    """A column that was constant in training becomes zero in all graphs."""
    graphs, stranger = train_graphs(), random_nodes(np.random.default_rng(9), 50)
    for nodes in graphs:
        nodes[:, 40], nodes[:, 139] = 7, 2
    scaler = fit_node_scaler(iter(graphs), scaling=scaling)
    for node_feat in (*graphs, stranger):
        scaled = scaler(node_feat)
        assert scaled.dtype == np.float32
        want = two_passes(graphs, scaling, node_feat)
        np.testing.assert_allclose(scaled, want, rtol=1e-4, atol=1e-4)
    stranger[:, 40], stranger[:, 139] = 1e6, 5
    scaled = scaler(stranger)
    assert not scaled[:, [40, 139]].any() and np.isfinite(scaled).all()


@pytest.mark.parametrize("scaling", ["standardise", "log1p-standardise"])
def test_far_outside_values_are_clipped_and_no_warning_is_given(scaling: str) -> None:
    graphs = train_graphs()
    for nodes in graphs:
        nodes[:, 28] = 1000 + np.arange(len(nodes)) % 100  # whose logarithms differ little
    scaler = fit_node_scaler(graphs, scaling=scaling)
    extreme = np.full((2, 140), 3e38, dtype=np.float32)
    extreme[1] *= -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaled = scaler(extreme)
    assert scaled[:, 28].tolist() == [10, -10] and abs(scaled).max() == 10


def test_no_train_graph_is_an_error() -> None:
    with pytest.raises(PipelineError, match="no train graph"):
        fit_node_scaler([], scaling="log1p")
