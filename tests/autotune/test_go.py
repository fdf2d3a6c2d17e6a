"""The policy of GO: its network, and PPO on unseen programs."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from autotune.go.network import (
    Choose,
    DecisionGraph,
    Policy,
    PolicyConfig,
    SegmentAttention,
    decision_graph,
    fixed_settings,
    likeliest_setting,
    sample_settings,
)
from autotune.go.ppo import (
    PpoConfig,
    clipped_objective,
    improve_policy,
    rewards_of,
)
from autotune.measure.program import WHOLE_PROGRAM, Description, Knobs
from features.scaling import NodeScaler
from models.training.device import CPU, torch_prepared

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


def two_tasks(name: str, arrays: Arrays) -> DecisionGraph:
    """Every node decides twice between two options."""
    n_nodes = len(arrays["node_opcode"])
    spaces = {"first": n_nodes, "second": n_nodes}
    known = described(arrays, [*range(n_nodes)] * 2, [2] * 2 * n_nodes, spaces)
    return decision_graph(name, known, UNSCALED)


def mixed_tasks(arrays: Arrays) -> DecisionGraph:
    """Some nodes decide between two or three options, then the program and a node, up to four."""
    nodes = [5, 2, 9, 11, WHOLE_PROGRAM, 7, WHOLE_PROGRAM]
    known = described(arrays, nodes, [2, 3, 3, 2, 4, 2, 1], {"first": 4, "second": 3})
    return decision_graph("mixed", known, UNSCALED)


def runtimes(arrays: Arrays, settings: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 1 plus the share of wrong decisions of each of two tasks, (b,), of settings (b, 2n).

    The right first decision of a node is the parity of its opcode. The right second decision is
    the first decision of the operand for the opcodes 0 to 3, and 0 for all other opcodes.
    """
    opcode = arrays["node_opcode"].astype(np.int64)
    first, second = np.split(settings, 2, axis=1)
    user, operand = arrays["edge_index"].T
    best = first[:, operand] * (opcode[user] < 4)
    return 1 + (first != opcode % 2).mean(axis=1) + (second[:, user] != best).mean(axis=1)


TWO_OPTIONS = {"first": 2, "second": 2}
SMALL = PolicyConfig(tasks={"first": 3, "second": 4}, hidden=16, heads=2, segment=8)


def opinionated(config: PolicyConfig = SMALL) -> Policy:
    """Return a policy of which no option is as likely as another."""
    torch.manual_seed(0)
    policy = Policy(config)
    for head in policy.heads.values():
        torch.nn.init.normal_(head.weight, std=0.2)
    return policy


def drawing(n_choices: int = 5) -> Any:
    return sample_settings(n_choices, torch.Generator().manual_seed(0))


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
    decided = policy(mixed_tasks(random_arrays(0)), drawing())
    decided.log_probs.sum().backward()
    without = {name for name, given in policy.named_parameters() if given.grad is None}
    assert without == {"embed.decisions.second.weight"}  # nothing comes after the last task


def test_options_that_exist_are_drawn_as_likely_as_they_are() -> None:
    decided = opinionated()(mixed_tasks(random_arrays(0)), drawing(3_000))
    for knob, n_options in enumerate([2, 3, 3, 2, 4, 2, 1]):
        assert set(decided.settings[:, knob].tolist()) == set(range(n_options))
    assert (decided.log_probs[:, 6] == 0).all()  # one option is no decision
    assert (decided.entropies[:, 6] == 0).all()
    is_first = decided.settings[:, 1] == 0
    probability = decided.log_probs[is_first, 1].exp().mean().item()
    assert is_first.float().mean().item() == pytest.approx(probability, abs=0.03)


def test_a_task_depends_on_what_was_decided_before_it_and_not_on_what_comes_after() -> None:
    policy, graph = opinionated(), mixed_tasks(random_arrays(0))
    settings = torch.zeros(3, graph.n_knobs, dtype=torch.int64)
    settings[1, 0] = 1  # another decision of the first task
    settings[2, 4] = 1  # and of the second
    base, first, second = policy(graph, fixed_settings(settings)).log_probs
    torch.testing.assert_close(base[1:4], first[1:4])
    assert (base[4:6] - first[4:6]).abs().max() > 1e-4
    torch.testing.assert_close(base[:4], second[:4])
    torch.testing.assert_close(base[5:], second[5:])


def test_the_reward_is_the_root_of_the_ratio_and_a_failure_costs_ten() -> None:
    assert rewards_of(np.array([1.0, 4.0, 0.25, 1e9, np.inf])).tolist() == [-1, -2, -0.5, -10, -10]


def test_the_objective_gains_nothing_from_probabilities_beyond_the_clip() -> None:
    before = np.array([[0.5, 0.2], [0.5, 0.4]])
    now = np.array([[0.7, 0.22], [0.3, 0.6]])
    advantages = np.array([1.0, -2.0])
    total = 0.0
    for setting, advantage in enumerate(advantages):
        for one, other in zip(now[setting], before[setting], strict=True):
            ratio = one / other
            total += min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    given = [torch.from_numpy(np.log(p)) for p in (now, before)]
    found = clipped_objective(*given, torch.from_numpy(advantages), 0.2)
    assert found.item() == pytest.approx(total / 4)


def test_what_pays_by_opcode_and_by_a_neighbours_decision_is_learned_for_unseen_programs() -> None:
    arrays = {f"program {seed}": random_arrays(seed) for seed in range(12)}
    graphs = [two_tasks(name, own) for name, own in arrays.items()]
    seen, unseen = graphs[:8], graphs[8:]
    config = PpoConfig(steps=160)
    with torch_prepared(threads=1, device=CPU, seed=0):
        policy = Policy(PolicyConfig(tasks=TWO_OPTIONS, hidden=32))

        @torch.no_grad()
        def mean_cost(choose: Choose) -> float:
            decided = {g.name: policy(g, choose).settings.numpy() for g in unseen}
            return float(np.mean([runtimes(arrays[n], c).mean() for n, c in decided.items()]))

        chance = mean_cost(sample_settings(64, torch.Generator().manual_seed(1)))
        improve_policy(policy, seen, lambda g, c: runtimes(arrays[g.name], c), config, seed=0)
        learned = mean_cost(likeliest_setting)
    assert chance == pytest.approx(2, abs=0.1)
    assert learned < 1.25
