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
from models.layout.task import LayoutTask
from models.training.dataset import LRUCache, bytes_held
from models.training.folds import HeldOut
from models.training.losses import pairwise_hinge
from tests.models.rearrange import permute_configs

XLA_RANDOM = collection_named("layout:xla:random")


@pytest.fixture(scope="module")
def files(tiny_tree: Path) -> tuple[GraphFile, ...]:
    return tuple(find_graphs(tiny_tree, collections=(XLA_RANDOM,), splits=("train",)))


def task_over(files: tuple[GraphFile, ...], **keys: object) -> LayoutTask:
    config = CrossConfigSageConfig.model_validate({"hidden": 16, "configs_per_step": 12, **keys})
    scaler = fit_node_scaler((read_layout(f).node_feat for f in files), scaling="log1p")

    def make(file: GraphFile) -> LayoutInputs:
        graph = read_layout(file)
        return layout_inputs(graph, rule="hops-1", scaler=scaler)

    return LayoutTask(
        files, LRUCache(make, size=lambda inputs: 1, max_bytes=10**9), config, HeldOut(files)
    )


def new_model(task: LayoutTask) -> CrossConfigSage:
    torch.manual_seed(0)
    assert isinstance(task.config, CrossConfigSageConfig)
    return CrossConfigSage(task.config)


def test_a_step_learns_from_configs_drawn_at_random(files) -> None:
    task = task_over(files[:1])
    model = new_model(task)
    inputs = task.inputs(files[0])
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
