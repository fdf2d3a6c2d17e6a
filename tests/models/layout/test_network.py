"""The layout task: effects of recipe keys on a training step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from data.cache import LRUCache, bytes_held
from data.families import HeldOut
from data.graphs.graph import LayoutGraph
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.network import LayoutTask
from models.training.losses import pairwise_hinge
from tests.models.rearrange import permute_configs


def test_a_step_learns_from_configs_drawn_at_random(
    layout_graph: LayoutGraph, inputs: LayoutInputs
) -> None:
    config, files = CrossConfigSageConfig(hidden=16, configs_per_step=12), (layout_graph.file,)
    cache, model = LRUCache(lambda _: inputs), CrossConfigSage(config)
    task = LayoutTask(files, cache, config, 0, HeldOut(files))
    rng = np.random.default_rng(5)
    sample = rng.choice(len(inputs.first), 12, replace=False, shuffle=False)
    expected = pairwise_hinge(model(inputs, sample), torch.from_numpy(inputs.runtime_ns[sample]))
    assert task.step_loss(model, 0, np.random.default_rng(5))[0].item() == expected.item()


@pytest.mark.parametrize("n_per_step", [1, 3, 5, 7, 9])
def test_every_graph_is_used_once_per_round(layout_graph: LayoutGraph, n_per_step: int) -> None:
    config = CrossConfigSageConfig(graphs_per_step=n_per_step)
    files = (layout_graph.file,) * 7
    task = LayoutTask(files, LRUCache(lambda _: None), config, 5, HeldOut(files))
    used = [position for step in range(35) for position in task.chosen(step)]
    rounds = np.reshape(used, (-1, 7))
    assert (np.sort(rounds, axis=1) == np.arange(7)).all()
    assert len(np.unique(rounds, axis=0)) > len(rounds) / 2
    other = replace(task, seed=6)
    assert used != [position for step in range(35) for position in other.chosen(step)]


def test_the_cache_counts_configs_as_they_are_packed(layout_graph: LayoutGraph, scaler) -> None:
    many = permute_configs(layout_graph, np.arange(20).repeat(200))
    inputs = layout_inputs(many, rule="hops-1", scaler=scaler)
    configs = inputs.configs
    of_rows = inputs.group.nbytes + configs.content_hashes().nbytes
    unpacked = configs.n_configs * configs.n_configurable * 18
    assert inputs.node_feat.nbytes + of_rows < bytes_held(inputs) < unpacked
