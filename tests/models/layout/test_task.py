"""The layout task: what a recipe's keys change in a step."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UsageError
from data.read import read_layout
from data.tree import GraphFile, collection_named, find_graphs
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.config.recipe import load_recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.task import LayoutTask
from models.training.dataset import LRUCache, bytes_held
from models.training.folds import HeldOut
from models.training.losses import order_confidence, pairwise_hinge
from models.training.samplers import SAMPLERS
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
        return layout_inputs(
            graph, rule="hops-1", scaler=scaler, with_noise=config.noise_weighted_pairs
        )

    return LayoutTask(
        files, LRUCache(make, size=lambda inputs: 1, max_bytes=10**9), config, HeldOut(files)
    )


def new_model(task: LayoutTask) -> CrossConfigSage:
    torch.manual_seed(0)
    assert isinstance(task.config, CrossConfigSageConfig)
    return CrossConfigSage(task.config)


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_a_step_learns_from_the_samplers_configs(files, sampler: str) -> None:
    task = task_over(files[:1], sampler=sampler)
    model = new_model(task)
    inputs = task.inputs(files[0])
    rng = np.random.default_rng(5)
    rng.permutation(1)  # the graph is drawn first
    sample = SAMPLERS[sampler](inputs.runtime_ns, 12, rng)
    expected = pairwise_hinge(model(inputs, sample), torch.from_numpy(inputs.runtime_ns[sample]))
    assert task.step_loss(model, np.random.default_rng(5))[0].item() == expected.item()


def test_pairs_are_weighed_by_the_graphs_own_noise(files) -> None:
    twice = permute_configs(read_layout(files[0]), np.arange(20).repeat(2))
    runtime_ns = twice.runtime_ns * np.tile([1000, 1001], 20)  # the second time 0.1 % slower
    scaler = fit_node_scaler([twice.node_feat], scaling="log1p")
    inputs = layout_inputs(
        replace(twice, runtime_ns=runtime_ns), rule="hops-1", scaler=scaler, with_noise=True
    )
    assert inputs.noise == pytest.approx(np.log(1.001))
    config = task_over(files, noise_weighted_pairs=True).config
    kept = LRUCache(lambda file: inputs, size=lambda item: 1, max_bytes=1)
    task = LayoutTask(files[:1], kept, config, HeldOut(files[:1]))
    model = new_model(task)
    rng = np.random.default_rng(5)
    rng.permutation(1)
    sample = SAMPLERS["uniform"](inputs.runtime_ns, 12, rng)
    runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])
    weights = order_confidence(runtime_ns, inputs.noise)
    expected = pairwise_hinge(model(inputs, sample), runtime_ns, weights=weights)
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


def test_a_listwise_loss_has_no_pairs_to_weigh() -> None:
    keys = ["cross_config_sage.loss=list_mle", "cross_config_sage.noise_weighted_pairs=true"]
    with pytest.raises(UsageError, match="noise_weighted_pairs"):
        load_recipe("smoke", keys)
