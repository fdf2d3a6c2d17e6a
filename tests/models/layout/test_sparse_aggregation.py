"""Sums over neighbours against the plain formulas."""

import numpy as np
import pytest
import torch
from torch import nn

from models.layout import plain_ops
from models.layout.ops import Aggregate
from models.layout.sparse_aggregation import Aggregation, Neighbours, joint_matrix

EDGES = torch.tensor([[3, 0], [3, 1], [2, 1], [4, 3]])
N_NODES, N_CONFIGS, WIDTH = 6, 5, 8


@pytest.fixture
def neighbours() -> Neighbours:
    return Neighbours(EDGES, N_NODES, varying=torch.tensor([4, 1]))


@pytest.fixture(params=[1, 2 * N_CONFIGS * WIDTH * 4, 1 << 20])
def norm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> nn.LayerNorm:
    monkeypatch.setattr(plain_ops, "SLICE_BYTES", request.param)
    torch.manual_seed(1)
    layer = nn.LayerNorm(WIDTH)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


@pytest.fixture
def weights() -> torch.Tensor:
    return torch.randn(3, WIDTH, WIDTH, requires_grad=True)


def plain(
    matrix: torch.Tensor,
    x: torch.Tensor,
    norm: nn.LayerNorm,
    weights: torch.Tensor,
    added: torch.Tensor,
) -> torch.Tensor:
    projected = torch.cat([norm(x) @ weight.T for weight in weights])  # (3m, c, h)
    return torch.einsum("rm,mch->rch", matrix, projected) + added


def aggregate(
    aggregation: Aggregation,
    x: torch.Tensor,
    norm: nn.LayerNorm,
    weights: torch.Tensor,
    added: torch.Tensor,
) -> torch.Tensor:
    given = norm.weight, norm.bias, norm.eps, weights, added, aggregation
    found: torch.Tensor = Aggregate.apply(x, *given, plain_ops)
    return found


MATRIX = joint_matrix(EDGES, N_NODES)


def test_neighbours_are_means_over_edges() -> None:
    x = np.random.default_rng(0).normal(size=(N_NODES, 3)).astype(np.float32)
    own, operands, users = (part @ x for part in np.split(MATRIX.toarray(), 3, axis=1))
    np.testing.assert_array_equal(own, x)
    for node in range(N_NODES):
        read = [int(v) for u, v in EDGES if u == node]
        readers = [int(u) for u, v in EDGES if v == node]
        np.testing.assert_allclose(operands[node], x[read].mean(0) if read else 0, rtol=1e-6)
        np.testing.assert_allclose(users[node], x[readers].mean(0) if readers else 0, rtol=1e-6)


def test_graph_without_edges_takes_nodes_alone(norm: nn.LayerNorm, weights: torch.Tensor) -> None:
    x, added = torch.randn(3, 2, WIDTH), torch.randn(WIDTH)
    neighbours = Neighbours(torch.zeros(0, 2, dtype=torch.int64), 3, varying=torch.tensor([1]))
    found = aggregate(neighbours.every, x, norm, weights, added)
    torch.testing.assert_close(found, norm(x) @ weights[0].T + added)


@pytest.mark.parametrize("rows", ["every", "some", "of some nodes"])
def test_an_aggregation_and_its_gradients_are_the_plain_ones(
    norm: nn.LayerNorm, weights: torch.Tensor, rows: str
) -> None:
    matrix = MATRIX
    if rows == "some":  # in another order than the nodes, one without its own value
        matrix = matrix[[4, 0, 3]]
    elif rows == "of some nodes":
        matrix = matrix[:, [5, 2, 11, 8, 17, 14]]
    n_rows, n_sources = matrix.shape[0], matrix.shape[1] // 3
    x = torch.randn(n_sources, N_CONFIGS, WIDTH, requires_grad=True)
    added = torch.randn(WIDTH) if rows == "every" else torch.randn(n_rows, 1, WIDTH)
    added.requires_grad_()
    found = aggregate(Aggregation(matrix.tocsr()), x, norm, weights, added)
    expected = plain(torch.from_numpy(matrix.toarray()), x, norm, weights, added)
    torch.testing.assert_close(found, expected)

    target = torch.randn(found.shape)
    wanted = [x, added, weights, norm.weight, norm.bias]
    torch.testing.assert_close(
        torch.autograd.grad((found * target).sum(), wanted),
        torch.autograd.grad((expected * target).sum(), wanted),
        rtol=1e-4,
        atol=1e-5,
    )


def test_what_varies_and_what_does_not_add_up_to_the_whole(
    neighbours: Neighbours, norm: nn.LayerNorm, weights: torch.Tensor
) -> None:
    shared, varying = torch.randn(N_NODES, 1, WIDTH), torch.randn(2, N_CONFIGS, WIDTH)
    x = shared.expand(-1, N_CONFIGS, -1).index_copy(0, neighbours.varying, varying)
    added = torch.randn(WIDTH)
    common = aggregate(neighbours.fixed, shared, norm, weights, added)
    found = aggregate(neighbours.of_varying, varying, norm, weights, common)
    torch.testing.assert_close(found, aggregate(neighbours.every, x, norm, weights, added))
    torch.testing.assert_close(
        found, plain(torch.from_numpy(MATRIX.toarray()), x, norm, weights, added)
    )
