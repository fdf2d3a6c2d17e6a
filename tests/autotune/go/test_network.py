"""The policy network: attention, masking of options, and memory across segments."""

from typing import Any

import pytest
import torch

from autotune.go.network import (
    Policy,
    PolicyConfig,
    SegmentAttention,
    fixed_settings,
    sample_settings,
)
from tests.autotune.go.programs import mixed_tasks, random_arrays

TASKS = {"first": 3, "second": 4}
SMALL = PolicyConfig(tasks=TASKS, hidden=16, heads=2, segment=8)


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


def test_only_options_that_exist_are_drawn_and_all_of_them_are() -> None:
    graph = mixed_tasks(random_arrays(0))
    decided = opinionated()(graph, drawing(2_000))
    for knob, n_options in enumerate([2, 3, 3, 2, 4, 2, 1]):
        assert set(decided.settings[:, knob].tolist()) == set(range(n_options))
    assert (decided.log_probs[:, 6] == 0).all()  # one option is no decision
    assert (decided.entropies[:, 6] == 0).all()


def test_settings_are_drawn_as_likely_as_they_are_said_to_be() -> None:
    decided = opinionated()(mixed_tasks(random_arrays(0)), drawing(3_000))
    took = decided.settings[:, 1] == 0
    said = decided.log_probs[took, 1].exp().mean().item()
    assert took.float().mean().item() == pytest.approx(said, abs=0.03)


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
