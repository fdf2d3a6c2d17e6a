"""The network of GO, and orders of edits that are learned from other programs."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autotune.measure.program import Description, Knobs
from benchmarks import go
from benchmarks.go_policy import SegmentAttention
from common.reproducibility import generator

GOOD_OPCODE = 3


def table(seed: int, n_nodes: int = 24) -> go.EditTable:
    """Return edits that are fast after nodes of one kind. Each node consumes one or two others."""
    rng = generator(seed, "graph")
    users = np.repeat(np.arange(1, n_nodes), 2)
    edges = np.stack([users, np.maximum(0, users - rng.integers(1, 5, len(users)))], axis=1)
    arrays: dict[str, NDArray[Any]] = {
        "node_feat": rng.random((n_nodes, 140), dtype=np.float32),
        "node_opcode": rng.permutation(np.arange(n_nodes) % 6).astype(np.uint8),
        "edge_index": np.unique(edges, axis=0),
    }
    ones = np.ones(n_nodes, np.int64)
    knobs = {"fusion": Knobs(2 * ones, np.arange(n_nodes), np.arange(n_nodes))}
    nodes = np.sort(rng.permutation(n_nodes)[:16])
    is_good = arrays["node_opcode"][nodes] == GOOD_OPCODE
    ratios = np.where(is_good, 0.8, 1.1) + 0.01 * rng.random(len(nodes))
    return go.EditTable(Description(knobs, arrays, {}), nodes, ratios, np.array([0.9, 0.95]))


@pytest.mark.parametrize(("learn", "n_programs"), [(go.train_policy, 8), (go.train_ridge, 30)])
def test_an_order_is_learned_from_other_programs(
    learn: Any, n_programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(go, "N_STEPS", 40)
    monkeypatch.setattr(go, "N_FOLDS", 2)
    tables = {f"p{seed}": table(seed) for seed in range(n_programs)}
    orders = go.learned_orders(learn, tables, 0)
    tries = []
    for name, (description, nodes, ratios, _) in tables.items():
        is_good = description.arrays["node_opcode"][nodes] == GOOD_OPCODE
        assert sorted(orders[name]) == list(range(len(nodes)))
        tries.append(is_good[orders[name]][: is_good.sum()].mean())
        assert go.n_tries(ratios, ratios.argsort()) == 1
    assert np.mean(tries) > 0.8


def test_attention_over_segments_is_attention_over_all_nodes_within_the_same_window() -> None:
    torch.manual_seed(0)
    layer, x = SegmentAttention(16, heads=2, segment=8), torch.randn(21, 16)
    segment = torch.arange(21) // 8
    behind = segment[:, None] - segment
    window = (behind == 0) | (behind == 1)
    keys, values = layer.memory(x).chunk(2, dim=-1)
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        scores = torch.einsum("nh,mh->nm", layer.queries(x)[..., head], keys[..., head])
        weights = (scores / 8**0.5).masked_fill(~window, -torch.inf).softmax(dim=-1)
        heads.append(weights @ values[..., head])
    torch.testing.assert_close(layer.attend(x), torch.cat(heads, dim=-1))


def test_no_gradient_passes_to_the_segment_before() -> None:
    layer = SegmentAttention(16, heads=2, segment=8)
    x = torch.randn(16, 16, requires_grad=True)
    layer.attend(x)[8:].square().sum().backward()
    assert x.grad is not None and x.grad[8:].any() and not x.grad[:8].any()
