"""Computing what varies alone equals computing every node for every config."""

import numpy as np
import pytest
import torch

from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import SageBlock
from models.layout.sparse_aggregation import Neighbours
from models.segments.cut import receptive_field
from models.segments.network import advance

# Two chains; configs reach all of the first one within three edges, and none of the second.
EDGES = torch.tensor([[1, 0], [2, 1], [3, 2], [4, 3], [5, 4], [7, 6], [8, 7]])
N_NODES, N_CONFIGS, WIDTH, DEPTH = 9, 5, 8, 3


@pytest.fixture
def blocks() -> list[SageBlock]:
    torch.manual_seed(0)
    config = CrossConfigSageConfig(hidden=WIDTH, channel_reduction=2, cross_config=False)
    return [SageBlock(config) for _ in range(DEPTH)]


def neighbours_of(config_ids: list[int]) -> Neighbours:
    return Neighbours(EDGES, N_NODES, varying=torch.tensor(config_ids, dtype=torch.int64))


def test_configs_reach_one_edge_further_with_each_block() -> None:
    reach = receptive_field(neighbours_of([5, 4]), DEPTH)
    assert [ring.after.tolist() for ring in reach.rings] == [
        [3, 4, 5],
        [2, 3, 4, 5],
        [1, 2, 3, 4, 5],
    ]
    assert reach.reached.tolist() == [1, 2, 3, 4, 5]
    assert reach.constant.tolist() == [0, 6, 7, 8]
    assert reach.reached[reach.configurable].tolist() == [5, 4]


def test_without_configurable_nodes_nothing_varies() -> None:
    reach = receptive_field(neighbours_of([]), DEPTH)
    assert reach.rings == ()
    assert reach.reached.tolist() == []
    assert reach.constant.tolist() == list(range(N_NODES))


@pytest.mark.parametrize("config_ids", [[2], [5, 4], [0, 8], list(range(N_NODES))])
def test_advancing_the_receptive_field_equals_advancing_every_node(
    blocks: list[SageBlock], config_ids: list[int]
) -> None:
    neighbours = neighbours_of(config_ids)
    reach = receptive_field(neighbours, DEPTH)
    first = torch.randn(N_NODES, 1, WIDTH, requires_grad=True)
    own = torch.randn(len(config_ids), N_CONFIGS, WIDTH, requires_grad=True)
    x = first.expand(-1, N_CONFIGS, -1).index_copy(0, neighbours.varying, own)
    shared, varying = first, own
    for block, ring in zip(blocks, reach.rings, strict=True):
        x = block(x, block.aggregate(x, neighbours))
        shared, varying = advance(block, shared, varying, ring, neighbours)
    constant = shared[reach.constant].expand(-1, N_CONFIGS, -1)
    torch.testing.assert_close(varying, x[reach.reached])
    torch.testing.assert_close(constant, x[reach.constant])

    target = torch.from_numpy(np.random.default_rng(0).normal(size=x.shape)).float()
    wanted = [first, own, *(parameter for block in blocks for parameter in block.parameters())]
    sparse = (varying * target[reach.reached]).sum() + (constant * target[reach.constant]).sum()
    expected = torch.autograd.grad((x * target).sum(), wanted)
    found = torch.autograd.grad(sparse, wanted, allow_unused=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
