"""The layout task: effects of recipe keys on a training step, and held-out configs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from common.metrics import kendall_tau
from data.cache import LRUCache, bytes_held
from data.families import HeldOut
from data.graphs.graph import LayoutGraph
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.network import LayoutTask, step_configs
from models.training.losses import pairwise_hinge
from tests.models.rearrange import permute_configs


def test_a_step_has_the_mean_loss_of_its_graphs_and_judges_configs_that_it_never_learns(
    layout_graph: LayoutGraph, inputs: LayoutInputs
) -> None:
    config = CrossConfigSageConfig(hidden=16, configs_per_step=12, graphs_per_step=3)
    files = (layout_graph.file,)
    held_out = HeldOut(files, files, by_config=True)
    torch.manual_seed(0)
    model = CrossConfigSage(config).eval()
    task = LayoutTask(files * 3, LRUCache(lambda _: inputs), config, 0, held_out)
    positions = held_out.configs(len(inputs.first), judged=False)
    rng, losses = np.random.default_rng(5), []
    for _ in range(3):
        sample = positions[rng.choice(len(positions), 12, replace=False, shuffle=False)]
        runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])
        losses.append(pairwise_hinge(model(inputs, sample), runtime_ns))
    loss, _ = task.step_loss(model, 0, np.random.default_rng(5))
    torch.testing.assert_close(loss, sum(losses) / 3)
    positions, taus = held_out.configs(len(inputs.first), judged=True), []
    assert len(positions) > 2
    for seed in range(4):
        sample = np.random.default_rng(seed).permutation(positions)[:12]
        runtime_ns = inputs.runtime_ns[sample]
        if len({*runtime_ns}) > 1:
            taus.append(kendall_tau(model(inputs, sample).detach().numpy(), runtime_ns))
    with torch.no_grad():
        assert [*task.judged(model, inputs)] == pytest.approx(taus)


@pytest.mark.parametrize(
    ("limit_mib", "n_nodes", "expected"),
    [(0, 10**6, 128), (512, 8192, 128), (512, 8193, 112), (512, 14_966, 64), (512, 10**6, 16)],
)
def test_a_large_graph_takes_fewer_configs(limit_mib: int, n_nodes: int, expected: int) -> None:
    config = CrossConfigSageConfig(hidden=256, configs_per_step=128, step_tensor_mib=limit_mib)
    assert step_configs(config, n_nodes) == expected
    few = config.model_copy(update={"configs_per_step": 12})
    assert step_configs(few, n_nodes) == 12


def test_a_step_and_its_held_out_samples_respect_the_limit(
    layout_graph: LayoutGraph, inputs: LayoutInputs
) -> None:
    files, seen = (layout_graph.file,), []
    config = CrossConfigSageConfig(hidden=1024, configs_per_step=24, step_tensor_mib=1)
    task = LayoutTask(files, LRUCache(lambda _: inputs), config, 0, HeldOut(files))
    _, sample = task.draw_sample(0, np.random.default_rng(0))
    assert len(sample) == step_configs(config, len(inputs.opcode)) == 16

    def model(_: LayoutInputs, judged: np.ndarray) -> torch.Tensor:
        seen.append(len(judged))
        return torch.arange(float(len(judged)))

    assert len(list(task.judged(model, inputs))) == len(seen)
    assert set(seen) == {16}


@pytest.mark.parametrize("n_per_step", [1, 3, 5, 7, 9])
def test_every_graph_is_used_once_per_round(layout_graph: LayoutGraph, n_per_step: int) -> None:
    config = CrossConfigSageConfig(graphs_per_step=n_per_step)
    files = (layout_graph.file,) * 7
    task = LayoutTask(files, LRUCache(lambda _: None), config, 5, HeldOut(files))
    used = [position for step in range(35) for position in task.graphs_of(step)]
    rounds = np.reshape(used, (-1, 7))
    assert (np.sort(rounds, axis=1) == np.arange(7)).all()
    assert len(np.unique(rounds, axis=0)) > len(rounds) / 2
    other = replace(task, seed=6)
    assert used != [position for step in range(35) for position in other.graphs_of(step)]


def test_the_cache_counts_configs_as_they_are_packed(layout_graph: LayoutGraph, scaler) -> None:
    many = permute_configs(layout_graph, np.arange(20).repeat(200))
    inputs = layout_inputs(many, rule="hops-1", scaler=scaler)
    configs = inputs.configs
    of_rows = inputs.group.nbytes + configs.content_hashes().nbytes
    unpacked = configs.n_configs * configs.n_configurable * 18
    assert inputs.node_feat.nbytes + of_rows < bytes_held(inputs) < unpacked
