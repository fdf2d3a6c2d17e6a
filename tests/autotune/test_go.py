"""The network of GO's policy."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from autotune.go.network import (
    DecisionGraph,
    Policy,
    PolicyConfig,
    SegmentAttention,
    decision_graph,
)
from autotune.measure.program import WHOLE_PROGRAM, Description, Knobs
from features.scaling import NodeScaler

Arrays = dict[str, NDArray[Any]]

UNSCALED = NodeScaler("log1p", np.zeros(140, np.float32), np.ones(140, np.float32))


def random_arrays(seed: int, n_nodes: int = 24) -> Arrays:
    """Return a graph. Each node after the first consumes one or two of the previous four nodes."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(1, n_nodes), 2)
    edges = np.stack([users, np.maximum(0, users - rng.integers(1, 5, len(users)))], axis=1)
    return {
        "node_feat": rng.random((n_nodes, 140), dtype=np.float32),
        "node_opcode": rng.integers(0, 6, n_nodes).astype(np.uint8),
        "edge_index": np.unique(edges, axis=0),
    }


def described(
    arrays: Arrays, nodes: list[int], n_options: list[int], spaces: dict[str, int]
) -> Description:
    """Return a description of knobs for some nodes. All knobs are distinct."""
    ends = np.cumsum([*spaces.values()])[:-1]
    columns = np.array(n_options), np.arange(len(nodes)), np.array(nodes)
    by_space = zip(*(np.split(column, ends) for column in columns), strict=True)
    return Description(dict(zip(spaces, map(Knobs._make, by_space), strict=True)), arrays, {})


def mixed_tasks(arrays: Arrays) -> DecisionGraph:
    """Some nodes decide between two or three options, then the program and a node, up to four."""
    nodes = [5, 2, 9, 11, WHOLE_PROGRAM, 7, WHOLE_PROGRAM]
    known = described(arrays, nodes, [2, 3, 3, 2, 4, 2, 1], {"first": 4, "second": 3})
    return decision_graph("mixed", known, UNSCALED)


SMALL = PolicyConfig(tasks={"first": 3, "second": 4}, hidden=16, heads=2, segment=8)


def opinionated(config: PolicyConfig = SMALL) -> Policy:
    """Return a policy of which no option is as likely as another."""
    torch.manual_seed(0)
    policy = Policy(config)
    for head in policy.heads.values():
        torch.nn.init.normal_(head.weight, std=0.2)
    return policy


def test_decisions_of_the_whole_program_are_nodes_at_the_end() -> None:
    graph = mixed_tasks(random_arrays(0))
    first, second = graph.tasks
    assert (first.knobs, second.knobs, graph.n_knobs) == (slice(0, 4), slice(4, 7), 7)
    assert first.nodes.tolist() == [5, 2, 9, 11]
    assert second.nodes.tolist() == [24, 7, 25]
    assert second.n_options.tolist() == [4, 2, 1]
    assert graph.opcode[24:].tolist() == [256, 257]
    assert not graph.node_feat[24:].any()


def test_attention_over_segments_is_attention_over_all_nodes_within_the_same_window() -> None:
    torch.manual_seed(0)
    layer, x = SegmentAttention(SMALL), torch.randn(21, 3, 16)
    segment = torch.arange(21) // 8
    behind = segment[:, None] - segment
    window = (behind == 0) | (behind == 1)
    keys, values = layer.memory(x).chunk(2, dim=-1)
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        scores = torch.einsum("nbh,mbh->bnm", layer.queries(x)[..., head], keys[..., head])
        weights = (scores / 8**0.5).masked_fill(~window, -torch.inf).softmax(dim=-1)
        heads.append(torch.einsum("bnm,mbh->nbh", weights, values[..., head]))
    torch.testing.assert_close(layer.attend(x), torch.cat(heads, dim=-1))


def test_no_gradient_passes_to_the_segment_before() -> None:
    layer, x = SegmentAttention(SMALL), torch.randn(16, 1, 16, requires_grad=True)
    layer.attend(x)[8:].square().sum().backward()
    assert x.grad is not None
    assert x.grad[8:].any()
    assert not x.grad[:8].any()


def test_every_weight_that_a_choice_depends_on_gets_a_gradient() -> None:
    policy = opinionated()
    graph = mixed_tasks(random_arrays(0))
    policy(graph, torch.zeros(1, graph.n_knobs, dtype=torch.int64)).sum().backward()
    without = {name for name, given in policy.named_parameters() if given.grad is None}
    assert without == {"embed.decisions.second.weight"}  # nothing comes after the last task


def test_a_task_depends_on_what_was_decided_before_it_and_not_on_what_comes_after() -> None:
    policy, graph = opinionated(), mixed_tasks(random_arrays(0))
    settings = torch.zeros(3, graph.n_knobs, dtype=torch.int64)
    settings[1, 0] = 1  # another decision of the first task
    settings[2, 4] = 1  # and of the second
    base, first, second = policy(graph, settings)
    torch.testing.assert_close(base[1:4], first[1:4])
    assert (base[4:6] - first[4:6]).abs().max() > 1e-4
    torch.testing.assert_close(base[:4], second[:4])
    torch.testing.assert_close(base[5:], second[5:])


def test_probabilities_of_the_options_that_exist_add_up_to_one() -> None:
    policy, graph = opinionated(), mixed_tasks(random_arrays(0))
    for knob, n_options in enumerate([2, 3, 3, 2, 4, 2, 1]):
        settings = torch.zeros(n_options, graph.n_knobs, dtype=torch.int64)
        settings[:, knob] = torch.arange(n_options)
        total = policy(graph, settings)[:, knob].exp().sum().item()
        assert abs(total - 1) < 1e-5
