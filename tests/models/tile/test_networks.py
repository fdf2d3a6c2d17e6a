"""The tile networks: early fusion against its plain formulation, and batches of ragged kernels."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data.cache import bytes_held
from data.graph_store.stored_graph import read_tile
from data.tree import GraphFile, collection_named, find_graphs
from features.scaling import fit_node_scaler
from features.statistics.configs import statistics_of
from models.config.custom import imported
from models.config.networks import TileGnnConfig
from models.config.recipe import Recipe, load_recipe
from models.registry import NETWORKS
from models.tile.early_fusion_sage import EarlyFusionSage
from models.tile.inputs import ConfigScaler, TileInputs, join, tile_inputs
from models.tile.late_fusion_sage import MeanSage
from models.tile.network import TileNetwork
from tests.models.rearrange import permute_configs

RECIPE = load_recipe("smoke")
TILE_NETWORKS = [name for name, (kind, _) in NETWORKS.items() if kind == "tile"]


@pytest.fixture(scope="module")
def files(tiny_tree: Path) -> list[GraphFile]:
    return find_graphs(tiny_tree, collections=(collection_named("tile:xla"),), splits=("train",))


@pytest.fixture(scope="module")
def kernels(files: list[GraphFile]) -> list[TileInputs]:
    """Kernels of different numbers of nodes and configs; the last has no edge."""
    graphs = [read_tile(file) for file in files]
    nodes = fit_node_scaler((graph.node_feat for graph in graphs), scaling="log1p-standardise")
    made = [tile_inputs(graph, TileGnnConfig(), nodes=nodes) for graph in graphs]
    made.append(replace(made[0], edge_index=np.zeros((2, 0), np.int64)))
    assert len({len(kernel.opcode) for kernel in made}) > 1
    assert len({len(kernel.runtime) for kernel in made}) > 1
    return made


def _net(name: str, kernels: Iterable[TileInputs], recipe: Recipe = RECIPE) -> TileNetwork:
    torch.manual_seed(3)
    net: TileNetwork = imported(NETWORKS[name][1])(getattr(recipe, name)).eval()
    for parameter in net.parameters():  # so that no bias or temperature stays 0
        torch.nn.init.normal_(parameter, std=0.3)
    net.config_scaler.fit(kernel.config_columns() for kernel in kernels)
    return net


def _plain_early_fusion(model: EarlyFusionSage, kernel: TileInputs, config: int) -> torch.Tensor:
    """Score one config as the baseline's authors write it: joined to every node, then layers."""
    batch = join([kernel], [np.array([config])], model.config_scaler)
    opcode, layout = model.opcode(batch.opcode), model.layout(batch.layout).flatten(1)
    nodes = torch.cat([batch.node_feat, opcode, layout], dim=1)
    config_feat = batch.config_feat[0].expand(len(nodes), -1)
    of_nodes, of_nodes_around = model.nodes.weight.chunk(2, dim=1)[::-1]
    q, r = model.configs.weight.chunk(2, dim=0)
    first = torch.cat([of_nodes_around, q, of_nodes, r], dim=1)
    layers = [(first, model.nodes.bias), *((layer.weight, layer.bias) for layer in model.layers)]
    x = torch.cat([nodes, config_feat], dim=1)
    for weight, bias in layers:
        around = torch.zeros_like(x)
        for producer, consumer in kernel.edge_index.T.tolist():
            around[consumer] += x[producer]
            around[producer] += x[consumer]
        y = F.leaky_relu(torch.cat([around, x], dim=1) @ weight.T + bias)
        x = y / y.norm(dim=1, keepdim=True)
    score: torch.Tensor = model.head(x.sum(dim=0))
    return score


def test_early_fusion_equals_joining_each_config_to_every_node(kernels: list[TileInputs]) -> None:
    model = _net("early_fusion_sage", kernels)
    assert isinstance(model, EarlyFusionSage)
    for kernel in (kernels[0], kernels[-1]):
        scores = model(join([kernel], [np.arange(5)], model.config_scaler))[0]
        plain = torch.cat([_plain_early_fusion(model, kernel, row) for row in range(5)])
        assert plain.std() > 0
        torch.testing.assert_close(scores, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", TILE_NETWORKS)
def test_a_ragged_batch_gives_what_each_kernel_alone_gives(
    name: str, kernels: list[TileInputs]
) -> None:
    model = _net(name, kernels)
    rng = np.random.default_rng(0)
    rows = [rng.permutation(len(k.runtime))[: 3 + 2 * i] for i, k in enumerate(kernels)]
    batch = join(kernels, rows, model.config_scaler)
    assert batch.node_feat.shape[0] == sum(len(kernel.opcode) for kernel in kernels)
    together = model(batch)
    for scores, runtime, kernel, part in zip(together, batch.runtime, kernels, rows, strict=True):
        alone = model(join([kernel], [part], model.config_scaler))[0]
        torch.testing.assert_close(scores[: len(part)], alone, atol=1e-5, rtol=1e-4)
        assert runtime.isfinite().sum() == len(part)


def test_early_fusion_does_not_depend_on_the_chunk(kernels: list[TileInputs]) -> None:
    recipe = load_recipe("smoke", ["early_fusion_sage.hidden=1024"])
    model, kernel = _net("early_fusion_sage", kernels, recipe), kernels[0]
    assert isinstance(model, EarlyFusionSage)
    n_whole = len(kernel.runtime)
    whole = model.score_all(kernel)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, given: sizes.append(given[0].runtime.shape[1]))
    model.config = model.config.model_copy(update={"inference_tensor_mib": 1})
    np.testing.assert_allclose(
        model.score_all(kernel), whole, rtol=1e-4, atol=1e-5 * abs(whole).max()
    )
    assert sum(sizes) == n_whole and max(sizes) * 4096 * len(kernel.opcode) <= 1 << 20


def test_layers_of_late_fusion_are_those_of_torch_geometric() -> None:
    from torch_geometric.nn import SAGEConv

    torch.manual_seed(1)
    own = MeanSage(6)
    torch.manual_seed(1)
    plain = SAGEConv(6, 6)
    x = torch.randn(9, 6)
    edges = torch.tensor([[0, 1, 1, 5, 8], [2, 2, 4, 0, 8]])
    n_operands = edges[1].bincount(minlength=9).float()[:, None]
    torch.testing.assert_close(own(x, edges, n_operands), plain(x, edges))


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("statistics", ["plain", "all"])
def test_a_kernel_keeps_what_differs_between_configs_and_reads_all_of_it(
    statistics: Literal["plain", "all"], relative: bool, files: list[GraphFile]
) -> None:
    graph = read_tile(files[0])
    graph = permute_configs(graph, np.arange(graph.n_configs).repeat(50))
    config = TileGnnConfig(statistics=statistics, relative_configs=relative)
    nodes = fit_node_scaler([graph.node_feat], scaling="log1p")
    kernel = tile_inputs(graph, config, nodes=nodes)
    own = statistics_of(graph, statistics)(np.arange(graph.n_configs))
    columns = kernel.config_columns()
    assert columns.shape[1] == own.shape[1] * (1 + relative)
    np.testing.assert_array_equal(columns[:, : own.shape[1]], own)
    if relative:
        expected = own - own.astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(columns[:, own.shape[1] :], expected, rtol=1e-3, atol=1e-4)
    scaler = ConfigScaler(columns.shape[1])
    scaler.fit([columns])
    rows = np.random.default_rng(0).permutation(graph.n_configs)[:30]
    expected = (columns - scaler.shift.numpy()) * scaler.factor.numpy()
    found = join([kernel], [rows], scaler).config_feat[0]
    np.testing.assert_array_equal(found, expected.clip(-10, 10)[rows])
    of_these = join([kernel.only(rows)], [np.arange(30)], scaler)
    np.testing.assert_array_equal(of_these.config_feat[0], found)
    assert bytes_held(kernel) < columns.nbytes / (4 if relative else 2)
