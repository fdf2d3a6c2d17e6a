"""The graph of configurable nodes at the size of the largest program, in shapes easy to foretell.

Small graphs of any shape are compared with a search in test_pruning.py.
"""

import numpy as np
import pytest
from numpy.typing import NDArray

from features.pruning.config_graph import config_graph_edges

N_NODES, N_EDGES, N_CONFIGURABLE = 43_615, 75_000, 3_142


def configurable_nodes() -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    return np.sort(rng.choice(N_NODES, N_CONFIGURABLE, replace=False))


def chain() -> NDArray[np.int64]:
    """Each node reads the one before it; (n - 1, 2)."""
    consumers = np.arange(1, N_NODES)
    return np.stack([consumers, consumers - 1], axis=1)


def test_in_a_long_chain_each_reads_the_last_one_before_it() -> None:
    positions = np.arange(1, N_CONFIGURABLE)
    want = np.stack([positions, positions - 1], axis=1)
    found = config_graph_edges(chain(), N_NODES, configurable_nodes())
    np.testing.assert_array_equal(found, want)


def test_in_a_ring_the_first_reads_the_last() -> None:
    ring = np.concatenate([chain(), [[0, N_NODES - 1]]])
    positions = np.arange(N_CONFIGURABLE)
    want = np.stack([positions, (positions - 1) % N_CONFIGURABLE], axis=1)
    found = config_graph_edges(ring, N_NODES, configurable_nodes())
    np.testing.assert_array_equal(found, want)


def test_one_great_cycle_of_others_joins_all_that_read_it_and_all_it_reads() -> None:
    configurable = np.arange(20)
    ring = np.stack([np.arange(20, N_NODES), np.r_[np.arange(21, N_NODES), 20]], axis=1)
    readers = np.stack([configurable[:10], np.linspace(20, N_NODES - 1, 10, dtype=int)], axis=1)
    read = np.stack([np.linspace(25, N_NODES - 9, 10, dtype=int), configurable[10:]], axis=1)
    edges = np.random.default_rng(0).permutation(np.concatenate([ring, readers, read]))
    want = [[reader, producer] for reader in range(10) for producer in range(10, 20)]
    assert config_graph_edges(edges, N_NODES, configurable).tolist() == want


@pytest.mark.parametrize("reach", [5, 50, 500])
def test_the_order_of_nodes_changes_nothing(reach: int) -> None:
    rng = np.random.default_rng(0)
    consumers = rng.integers(1, N_NODES, N_EDGES)
    producers = np.maximum(0, consumers - rng.integers(1, reach + 1, N_EDGES))
    edges = np.stack([consumers, producers], axis=1)
    configurable, new_of_old = configurable_nodes(), rng.permutation(N_NODES)
    found = config_graph_edges(edges, N_NODES, configurable)
    moved = config_graph_edges(new_of_old[edges], N_NODES, new_of_old[configurable])
    np.testing.assert_array_equal(moved, found)
    assert len(found) > N_CONFIGURABLE
