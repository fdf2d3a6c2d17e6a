"""Sums over neighbours against the plain formulas; pruned graphs, from recipe to scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs
from data.tree import GraphFile
from features.pruning import RULES, prune_layout_graph
from features.scaling import NodeScaler
from features.statistics import configs
from features.statistics.configs import N_CONFIG_STATISTICS, statistics_of
from features.statistics.layout import output_bytes
from features.statistics.layout_tables import layout_tables
from models.config.recipe import load_recipe
from models.layout import plain_ops
from models.layout.autograd_ops import Aggregate
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import (
    Aggregation,
    LayoutInputs,
    SparseAggregation,
    joint_matrix,
    layout_inputs,
)
from models.registry import MODELS, TrainJob
from models.training.loop import load_tensors
from tests.models.rearrange import relabel_nodes

EDGES = torch.tensor([[3, 0], [3, 1], [2, 1], [4, 3]])
N_NODES, N_CONFIGS, WIDTH = 6, 5, 8


@pytest.fixture
def neighbours() -> SparseAggregation:
    return SparseAggregation(EDGES, N_NODES, varying=torch.tensor([4, 1]))


@pytest.fixture(params=[1, 2 * N_CONFIGS * WIDTH * 4, 1 << 20])
def norm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> nn.LayerNorm:
    monkeypatch.setattr(plain_ops, "SLICE_BYTES", request.param)
    torch.manual_seed(1)
    layer = nn.LayerNorm(WIDTH)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


@pytest.fixture
def weights() -> torch.Tensor:
    return torch.randn(3, WIDTH, WIDTH, requires_grad=True)


def plain(matrix, x, norm, weights, added):
    projected = torch.cat([norm(x) @ weight.T for weight in weights])  # (3m, c, h)
    return torch.einsum("rm,mch->rch", matrix, projected) + added


def aggregate(aggregation: Aggregation, x, norm, weights, added):
    given = norm.weight, norm.bias, norm.eps, weights, added, aggregation
    return Aggregate.apply(x, *given, plain_ops)


MATRIX = joint_matrix(EDGES, N_NODES)


def test_neighbours_are_means_over_edges() -> None:
    x = np.random.default_rng(0).normal(size=(N_NODES, 3)).astype(np.float32)
    own, operands, users = (part @ x for part in np.split(MATRIX.toarray(), 3, axis=1))
    np.testing.assert_array_equal(own, x)
    for node in range(N_NODES):
        read = [int(v) for u, v in EDGES if u == node]
        readers = [int(u) for u, v in EDGES if v == node]
        np.testing.assert_allclose(operands[node], x[read].mean(0) if read else 0, rtol=1e-6)
        np.testing.assert_allclose(users[node], x[readers].mean(0) if readers else 0, rtol=1e-6)


@pytest.mark.parametrize("rows", ["every", "some", "of some nodes"])
def test_an_aggregation_and_its_gradients_are_the_plain_ones(
    norm: nn.LayerNorm, weights: torch.Tensor, rows: str
) -> None:
    matrix = MATRIX
    if rows == "some":  # in another order than the nodes, one without its own value
        matrix = matrix[[4, 0, 3]]
    elif rows == "of some nodes":
        matrix = matrix[:, [5, 2, 11, 8, 17, 14]]
    n_rows, n_sources = matrix.shape[0], matrix.shape[1] // 3
    x = torch.randn(n_sources, N_CONFIGS, WIDTH, requires_grad=True)
    added = torch.randn(WIDTH) if rows == "every" else torch.randn(n_rows, 1, WIDTH)
    added.requires_grad_()
    found = aggregate(Aggregation(matrix.tocsr()), x, norm, weights, added)
    expected = plain(torch.from_numpy(matrix.toarray()), x, norm, weights, added)
    torch.testing.assert_close(found, expected)

    target = torch.randn(found.shape)
    wanted = [x, added, weights, norm.weight, norm.bias]
    torch.testing.assert_close(
        torch.autograd.grad((found * target).sum(), wanted),
        torch.autograd.grad((expected * target).sum(), wanted),
        rtol=1e-4,
        atol=1e-5,
    )


def test_what_varies_and_what_does_not_add_up_to_the_whole(
    neighbours: SparseAggregation, norm: nn.LayerNorm, weights: torch.Tensor
) -> None:
    shared, varying = torch.randn(N_NODES, 1, WIDTH), torch.randn(2, N_CONFIGS, WIDTH)
    x = shared.expand(-1, N_CONFIGS, -1).index_copy(0, neighbours.varying, varying)
    added = torch.randn(WIDTH)
    common = aggregate(neighbours.fixed, shared, norm, weights, added)
    found = aggregate(neighbours.of_varying, varying, norm, weights, common)
    expected = plain(torch.from_numpy(MATRIX.toarray()), x, norm, weights, added)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(aggregate(neighbours.every, x, norm, weights, added), expected)


# One segment, because the cuts depend on the order of nodes.
SEGMENT = "segment_sage.segment_nodes=1000"


@pytest.mark.parametrize("rule", [*RULES, "hops-1"])
@pytest.mark.parametrize("name", ["cross_config_sage", "segment_sage"])
def test_networks_train_and_rank_under_every_rule(
    name: str, rule: str, layout_files: list[GraphFile], tmp_path: Path
) -> None:
    recipe = load_recipe("smoke", [f"features.prune={rule}", SEGMENT])
    MODELS[name].train(TrainJob(name, recipe, layout_files[:1], 0, tmp_path))
    ranker, graph = MODELS[name].load(tmp_path, recipe), read_layout(layout_files[1])
    scores = ranker.score(graph)
    assert scores.shape == (graph.n_configs,)
    assert np.isfinite(scores).all()
    assert scores.std() > 0
    order = np.random.default_rng(0).permutation(graph.n_nodes)
    relabelled = ranker.score(relabel_nodes(graph, order))
    np.testing.assert_allclose(relabelled, scores, atol=1e-4 * np.abs(scores).max())


def inputs_with_statistics(graph: LayoutGraph, scaler: NodeScaler) -> LayoutInputs:
    return layout_inputs(graph, rule="hops-1", scaler=scaler, with_statistics=True)


def test_networks_read_statistics_minus_their_mean(
    layout_graph: LayoutGraph, scaler: NodeScaler
) -> None:
    inputs = inputs_with_statistics(layout_graph, scaler)
    values = statistics_of(layout_graph, "plain")(inputs.first)
    assert not np.ptp(values, axis=0)[N_CONFIG_STATISTICS:].any()
    values = values[:, :N_CONFIG_STATISTICS] - values[:, :N_CONFIG_STATISTICS].mean(axis=0)
    assert values.any(axis=1).sum() > 1
    for distinct in (np.arange(len(inputs.first)), torch.tensor([7, 3, 3])):
        statistics = inputs.statistics(distinct)
        assert statistics.dtype == torch.float32
        np.testing.assert_allclose(statistics.numpy(), values[distinct], atol=2e-6)
    # Tensors without values show that no operation waits for a GPU, so a step can be recorded.
    recorded = inputs.to(torch.device("meta")).statistics(torch.arange(5, device="meta"))
    assert recorded.shape == (5, N_CONFIG_STATISTICS)


def test_the_mean_of_many_configs_is_of_a_sample_by_content(
    layout_graph: LayoutGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "MAX_MOMENTS_CONFIGS", 10)
    tables, (first, _) = layout_tables(layout_graph), distinct_configs(layout_graph)
    lowest = first[np.argsort(layout_graph.configs.content_hashes()[first])[:10]]
    values = statistics_of(layout_graph, "plain")(lowest)[:, :N_CONFIG_STATISTICS]
    means, variances = configs.config_moments(layout_graph, tables, first)
    np.testing.assert_allclose(means, values.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(variances, values.var(axis=0), atol=1e-6)


def test_training_learns_and_keeps_the_scale_of_statistics(
    layout_files: list[GraphFile], tmp_path: Path
) -> None:
    """The scale is the root of the mean square, in which all graphs have the same weight."""
    recipe = load_recipe("smoke", ["cross_config_sage.statistics=true"])
    MODELS["cross_config_sage"].train(
        TrainJob("cross_config_sage", recipe, layout_files, 0, tmp_path)
    )
    tensors, _ = load_tensors(tmp_path / "model.safetensors")
    scale = tensors["model.statistics_scale"].numpy()
    squares, graphs = [], [read_layout(file) for file in layout_files]
    for graph in graphs:
        first = np.unique(graph.configs.content_hashes(), return_index=True)[1]
        squares.append(statistics_of(graph, "plain")(first)[:, :N_CONFIG_STATISTICS].var(axis=0))
    assert (np.max(squares, axis=0) > 1.5 * np.min(squares, axis=0)).any()
    expected = np.sqrt(sum(squares) / len(squares))
    np.testing.assert_allclose(scale, np.where(expected > 0, expected, 1), rtol=1e-4)
    ranker = MODELS["cross_config_sage"].load(tmp_path, recipe)
    assert np.isfinite(ranker.score(graphs[0])).all()


def test_inputs_follow_the_recipe_and_merge_equal_configs(
    layout_graph: LayoutGraph, scaler: NodeScaler
) -> None:
    runtime_ns = np.array([10, 70, 40, 5])
    repeated = replace(layout_graph.only(np.array([2, 2, 2, 0])), runtime_ns=runtime_ns)
    recipe = load_recipe("cpu", ["features.padding=minus_one"])
    inputs = CrossConfigSage(recipe.cross_config_sage).reader(recipe.features, scaler)(repeated)
    assert inputs.runtime_ns.tolist() == [40, 5] and inputs.n_query_configs == 0
    pruned = prune_layout_graph(repeated, rule="hops-1", padding="minus_one")
    assert (pruned.node_feat[:, :134] == -1).any() and (layout_graph.node_feat[:, :134] >= 0).any()
    scaled = scaler(pruned.node_feat)
    scaled[:, 134:] = 0  # the layout numbers, which are embedded
    np.testing.assert_array_equal(inputs.node_feat.numpy(), scaled)
    sizes = output_bytes(prune_layout_graph(repeated, rule="hops-1").node_feat)
    assert np.ptp(sizes) > 0
    np.testing.assert_allclose(inputs.bytes_share, sizes / sizes.sum(), rtol=1e-5)
