"""The layout task: what a recipe's keys change in a step."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.read import read_layout
from data.tree import GraphFile, collection_named, find_graphs
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.network import LayoutTask
from models.training.dataset import HeldOut, LRUCache, bytes_held
from models.training.losses import pairwise_hinge
from tests.models.rearrange import permute_configs

XLA_RANDOM = collection_named("layout:xla:random")


@pytest.fixture(scope="module")
def files(tiny_tree: Path) -> tuple[GraphFile, ...]:
    return tuple(find_graphs(tiny_tree, collections=(XLA_RANDOM,), splits=("train",)))


def test_a_step_learns_from_configs_drawn_at_random(files) -> None:
    config = CrossConfigSageConfig(hidden=16, configs_per_step=12)
    scaler = fit_node_scaler((read_layout(f).node_feat for f in files), scaling="log1p")
    inputs = layout_inputs(read_layout(files[0]), rule="hops-1", scaler=scaler)
    cache, model = LRUCache(lambda _: inputs), CrossConfigSage(config)
    task = LayoutTask(files[:1], cache, config, HeldOut(files[:1]))
    rng = np.random.default_rng(5)
    rng.permutation(1)  # the graph is drawn first
    sample = rng.permutation(len(inputs.first))[:12]
    expected = pairwise_hinge(model(inputs, sample), torch.from_numpy(inputs.runtime_ns[sample]))
    assert task.step_loss(model, np.random.default_rng(5))[0].item() == expected.item()


def test_the_cache_counts_configs_as_they_are_packed(files) -> None:
    many = permute_configs(read_layout(files[0]), np.arange(20).repeat(200))
    scaler = fit_node_scaler([many.node_feat], scaling="log1p")
    inputs = layout_inputs(many, rule="hops-1", scaler=scaler)
    configs = inputs.configs
    of_rows = inputs.group.nbytes + configs.content_hashes().nbytes
    unpacked = configs.n_configs * configs.n_configurable * 18
    assert inputs.node_feat.nbytes + of_rows < bytes_held(inputs) < unpacked
    made: list[GraphFile] = []

    def make(file: GraphFile) -> LayoutInputs:
        made.append(file)
        return replace(inputs, node_feat=inputs.node_feat.clone())

    cache = LRUCache(make, max_bytes=2 * unpacked)
    for file in (*files[:2], *files[:2]):
        cache(file)
    assert len(made) == 2
