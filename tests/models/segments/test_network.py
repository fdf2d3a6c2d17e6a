"""The layout GNN for whole graphs: segments, exact gradients, stored embeddings and resuming."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from common.progress import watched_by
from data.cache import LRUCache
from data.families import HeldOut
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph
from data.tree import GraphFile
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig, SegmentSageConfig
from models.config.recipe import FeaturesConfig, Recipe
from models.layout import cross_config_sage
from models.layout.cross_config_sage import SageBlock
from models.layout.inputs import SparseAggregation, layout_reader
from models.layout.network import LayoutTask
from models.registry import TrainJob
from models.segments.cut import SegmentedGraph, cut_graph, receptive_field
from models.segments.network import SegmentSage, advance, embed_configs
from models.segments.training import SegmentHistory, StoredTask, train_segments
from models.training.device import CPU, OnDevice, computing
from models.training.loop import WEIGHTS
from models.training.losses import LOSSES

# Two chains; configs reach all of the first one within three edges, and none of the second.
EDGES = torch.tensor([[1, 0], [2, 1], [3, 2], [4, 3], [5, 4], [7, 6], [8, 7]])
N_NODES, N_CONFIGS, WIDTH, DEPTH = 9, 5, 8, 3


@pytest.fixture
def blocks() -> list[SageBlock]:
    torch.manual_seed(0)
    config = CrossConfigSageConfig(hidden=WIDTH, channel_reduction=2, cross_config=False)
    return [SageBlock(config) for _ in range(DEPTH)]


@pytest.mark.parametrize("config_ids", [[2], [5, 4], [0, 8], list(range(N_NODES))])
def test_advancing_the_receptive_field_equals_advancing_every_node(
    blocks: list[SageBlock], config_ids: list[int]
) -> None:
    neighbours = SparseAggregation(EDGES, N_NODES, varying=torch.tensor(config_ids))
    reach = receptive_field(neighbours, DEPTH)
    first = torch.randn(N_NODES, 1, WIDTH, requires_grad=True)
    own = torch.randn(len(config_ids), N_CONFIGS, WIDTH, requires_grad=True)
    x = first.expand(-1, N_CONFIGS, -1).index_copy(0, neighbours.varying, own)
    shared, varying = first, own
    for block, ring in zip(blocks, reach.rings, strict=True):
        x = block(x, block.aggregate(x, neighbours))
        shared, varying = advance(block, shared, varying, ring, neighbours)
    constant = shared[reach.constant].expand(-1, N_CONFIGS, -1)
    torch.testing.assert_close(varying, x[reach.varying])
    torch.testing.assert_close(constant, x[reach.constant])

    target = torch.from_numpy(np.random.default_rng(0).normal(size=x.shape)).float()
    leaves = [first, own, *(parameter for block in blocks for parameter in block.parameters())]
    sparse = (varying * target[reach.varying]).sum() + (constant * target[reach.constant]).sum()
    gradients = torch.autograd.grad(sparse, leaves, allow_unused=True)
    dense_gradients = torch.autograd.grad((x * target).sum(), leaves)
    torch.testing.assert_close(gradients, dense_gradients, rtol=1e-4, atol=1e-4)


SEGMENT_NODES = 16


@pytest.fixture
def parts(layout_graph: LayoutGraph, scaler: NodeScaler) -> SegmentedGraph:
    return segments_of(layout_graph, scaler, SEGMENT_NODES)


def segments_of(graph: LayoutGraph, scaler: NodeScaler, segment_nodes: int) -> SegmentedGraph:
    read = layout_reader(FeaturesConfig(prune="none"), scaler)
    return cut_graph(graph, read=read, segment_nodes=segment_nodes, depth=2)


@pytest.fixture
def model() -> SegmentSage:
    torch.manual_seed(0)
    return SegmentSage(SegmentSageConfig(hidden=16)).eval()


def test_segments_keep_their_own_edges_and_every_configurable_node(
    layout_graph: LayoutGraph, parts: SegmentedGraph
) -> None:
    columns = torch.cat([segment.columns for segment in parts.segments])
    assert sorted(columns.tolist()) == list(range(len(layout_graph.node_config_ids)))
    start, n_edges = 0, 0
    for segment in parts.segments:
        n_nodes = len(segment.opcode)
        ids = layout_graph.node_config_ids[segment.columns.numpy()]
        assert (start + segment.config_ids.numpy()).tolist() == ids.tolist()
        within = (layout_graph.edge_index >= start) & (layout_graph.edge_index < start + n_nodes)
        edges = layout_graph.edge_index[within.all(axis=1)] - start
        pairs = segment.neighbours.edge_index.tolist()
        assert sorted(pairs) == np.unique(edges, axis=0).tolist()
        start, n_edges = start + n_nodes, n_edges + len(edges)
    assert 0 < n_edges < len(layout_graph.edge_index)


def plain_embedding(model: SegmentSage, parts: SegmentedGraph, choices: torch.Tensor):
    """Embed a graph as one would write it first: every node of every segment for every config."""
    means, highest, configurable, net = [], [], [], model.nodes
    for segment in parts.segments:
        x = net.nodes(segment).repeat(1, len(choices), 1)
        x[segment.config_ids] += net.settings(segment.vectors, choices)[segment.columns]
        for block in net.blocks:
            x = block(x, block.aggregate(x, segment.neighbours))
        x = net.norm(x)
        means.append(x)
        highest.append(x.amax(dim=0))
        configurable.append(x[segment.config_ids])
    pooled = torch.cat(means), torch.stack(highest), torch.cat(configurable)
    return torch.cat([part.mean(dim=0) for part in pooled], dim=-1)


@pytest.mark.parametrize("segment_nodes", [5, SEGMENT_NODES, 10_000])
@torch.no_grad()
def test_the_sum_over_segments_equals_plain_pooling_of_all_nodes(
    model: SegmentSage, layout_graph: LayoutGraph, scaler: NodeScaler, segment_nodes: int
) -> None:
    parts = segments_of(layout_graph, scaler, segment_nodes)
    sample = np.arange(6)
    found = embed_configs(model, parts, sample, chunk_configs=4)
    expected = plain_embedding(model, parts, parts.choices(sample))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert any(not segment.varies for segment in parts.segments) or segment_nodes > 5


@pytest.mark.parametrize("chunk_configs", [1, 32, 200])
def test_scores_do_not_depend_on_the_chunk(
    model: SegmentSage, parts: SegmentedGraph, chunk_configs: int
) -> None:
    whole = model.score_all(parts, chunk_configs=10_000)
    assert len(whole) > 32 and whole.std() > 0
    with torch.inference_mode():  # attention over all configs is that by their normaliser
        together = model.head(embed_configs(model, parts, np.arange(len(parts.first))))
    np.testing.assert_allclose(whole, together[parts.group], atol=1e-5)
    chunked = model.score_all(parts, chunk_configs=chunk_configs)
    np.testing.assert_allclose(chunked, whole, atol=1e-5)


def doubled(value: object) -> object:
    """Return inputs with every floating tensor in float64."""
    if isinstance(value, tuple):
        return tuple(map(doubled, value))
    if isinstance(value, OnDevice):
        clone = copy.copy(value)
        for name, part in vars(value).items():
            object.__setattr__(clone, name, doubled(part))
        return clone
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if is_float else value


def test_the_gradient_of_all_segments_is_that_of_plain_autograd_over_their_sum(
    layout_graph: LayoutGraph, scaler: NodeScaler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(cross_config_sage, "storage_dtype", lambda _: torch.float64)
    torch.manual_seed(0)
    model = SegmentSage(SegmentSageConfig(hidden=16)).double()
    parts = doubled(segments_of(layout_graph, scaler, 5))
    assert {segment.varies for segment in parts.segments} == {True, False}
    sample = np.arange(8)

    def gradients(scores: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = LOSSES["list_mle"](scores, parts.runtimes(sample))
        return torch.autograd.grad(loss, list(model.parameters()))

    choices = parts.choices(sample)
    embeddings = [model.encode(segment, choices).expand(8, -1) for segment in parts.segments]
    expected = gradients(model.head(torch.stack(embeddings).sum(dim=0)))
    assert all(gradient.dtype == torch.float64 for gradient in expected)
    assert all(gradient.abs().max() > 1e-9 for gradient in expected)
    torch.testing.assert_close(gradients(model(parts, sample)), expected, rtol=0, atol=1e-10)


def test_the_gradient_is_the_same_in_half_precision(
    model: SegmentSage, parts: SegmentedGraph
) -> None:
    sample = np.arange(8)
    with computing(CPU, "bfloat16"):
        embeddings = [model.encode(s, parts.choices(sample)) for s in parts.segments]
        plain = model.head(sum(e.float() for e in embeddings)).sum()
        recomputed = model(parts, sample).sum()
    # The backward pass is outside of `computing`, as in training.
    plain.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    recomputed.backward()
    # The plain pass adds the gradients of a weight's segments in half precision.
    for name, parameter in model.named_parameters():
        error = (parameter.grad - expected[name]).norm() / expected[name].norm()
        assert error < 0.02, name


def test_the_backward_pass_needs_the_memory_of_one_segment(
    layout_graph: LayoutGraph, scaler: NodeScaler
) -> None:
    torch.manual_seed(0)
    model, sample = SegmentSage(SegmentSageConfig(hidden=16)), np.arange(8)

    def peak_bytes(parts: SegmentedGraph) -> int:
        saved: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            saved[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(parts, sample)
        return sum(saved.values())

    whole = peak_bytes(segments_of(layout_graph, scaler, 10_000))
    assert peak_bytes(segments_of(layout_graph, scaler, SEGMENT_NODES)) < whole / 4


def stored_task(
    model: SegmentSage, graphs: list[LayoutGraph], parts: list[SegmentedGraph], **changes: object
) -> StoredTask:
    config = SegmentSageConfig(configs_per_step=8, table_configs=24, **changes)
    by_file = {graph.file: part for graph, part in zip(graphs, parts, strict=True)}
    cache = LRUCache(by_file.__getitem__, size=lambda _: 1, max_bytes=len(by_file))
    history = SegmentHistory([(len(part.segments), 24) for part in parts], model.width)
    return StoredTask(tuple(by_file), cache, config, seed=3, net=model, history=history)


def test_live_segments_have_gradients_and_the_others_are_stored(
    model: SegmentSage, layout_graph: LayoutGraph, scaler: NodeScaler
) -> None:
    parts = segments_of(layout_graph, scaler, 5)
    task = stored_task(model, [layout_graph], [parts], live_segments=2)
    for segment in parts.segments:
        segment.node_feat.requires_grad_()
    for seed in range(6):
        task.step_loss(model, 0, np.random.default_rng(seed))[0].backward()
        trained = [segment for segment in parts.segments if segment.node_feat.grad is not None]
        assert sum(segment.varies for segment in trained) == 2
        assert sum(not segment.varies for segment in trained) == sum(
            not segment.varies for segment in parts.segments
        )
        for segment in parts.segments:
            segment.node_feat.grad = None


def test_a_step_with_fresh_embeddings_has_the_full_loss(
    model: SegmentSage, layout_graph: LayoutGraph, parts: SegmentedGraph
) -> None:
    task = stored_task(model, [layout_graph], [parts], live_segments=1)
    n_distinct = len(parts.first)
    for seed in range(4):  # the weights do not change, so every stored embedding is fresh
        loss, _ = task.step_loss(model, 0, np.random.default_rng(seed))
        _, distinct = task.draw_group(0, n_distinct, np.random.default_rng(seed))
        with torch.no_grad():
            pooled = plain_embedding(model, parts, parts.choices(distinct))
            full = LOSSES["pairwise_hinge"](model.head(pooled), parts.runtimes(distinct))
        torch.testing.assert_close(loss.detach(), full)


def test_stored_embeddings_of_a_step_have_one_age(
    model: SegmentSage, layout_graph: LayoutGraph, parts: SegmentedGraph
) -> None:
    task = stored_task(model, [layout_graph], [parts], live_segments=1)
    n_distinct = len(parts.first)
    draws = [task.draw_group(0, n_distinct, np.random.default_rng(seed)) for seed in range(30)]
    groups = {tuple(group.tolist()): set(distinct.tolist()) for group, distinct in draws}
    assert len(groups) == 3
    assert len(set.union(*groups.values())) == sum(map(len, groups.values())) == 24
    # The embeddings of a group are missing together, or stored together.
    for seed in range(10):
        task.step_loss(model, 0, np.random.default_rng(seed))
        missing = task.history[0].isnan().all(dim=(0, 2))
        assert torch.equal(missing, task.history[0].isnan().any(dim=2).any(dim=0))
        assert all(len({bool(missing[row]) for row in group}) == 1 for group in groups)


@pytest.mark.parametrize("live_segments", [0, 1])
def test_a_step_has_the_mean_gradient_of_its_graphs(
    model: SegmentSage, layout_files: list[GraphFile], scaler: NodeScaler, live_segments: int
) -> None:
    graphs = [read_layout(file) for file in layout_files[:2]]
    # One segment, so that it is always the live one.
    wholes = [segments_of(graph, scaler, 10_000) for graph in graphs]

    def gradient(indices: list[int]) -> torch.Tensor:
        files = tuple(graphs[index].file for index in indices)
        keys = {"live_segments": live_segments, "graphs_per_step": len(indices)}
        # As many configs as there are, so that nothing is drawn.
        keys |= {"configs_per_step": 10_000, "table_configs": 10_000, "segment_nodes": 10_000}
        by_file = {graph.file: whole for graph, whole in zip(graphs, wholes, strict=True)}
        cache = LRUCache(by_file.__getitem__, size=lambda _: 1, max_bytes=2)
        config = SegmentSageConfig(**keys)
        sizes = [(1, len(wholes[index].first)) for index in indices]
        history = SegmentHistory(sizes, model.width)
        if live_segments:
            task = StoredTask(files, cache, config, 3, model, history)
        else:
            task = LayoutTask(files, cache, config, 3, HeldOut(files))
        model.zero_grad()
        task.step_loss(model, 0, np.random.default_rng(0))[0].backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    expected = torch.stack([gradient([index]) for index in range(2)]).mean(dim=0)
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(gradient([0, 1]), expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("live_segments", [0, 2])
@pytest.mark.parametrize("stop_at", [2, 7, 13])
def test_a_broken_off_run_ends_as_an_undisturbed_one(
    layout_graph: LayoutGraph, tmp_path: Path, stop_at: int, live_segments: int
) -> None:
    training = {"steps": 20, "warmup_steps": 2, "checkpoint_every": 4, "log_every": 4}
    config = {"hidden": 8, "segment_nodes": SEGMENT_NODES, "table_configs": 16}
    config |= {"live_segments": live_segments, "configs_per_step": 8, "training": training}
    table = {"threads": 1, "features": {"prune": "none"}, "segment_sage": config}
    recipe = Recipe.model_validate(table)

    def count_steps(folder: str, stop: int | None) -> int:
        calls: list[object] = []

        def count(*call: object) -> None:
            calls.append(call)
            if len(calls) == stop:
                raise KeyboardInterrupt

        job = TrainJob("segment_sage", recipe, [layout_graph.file], 5, tmp_path / folder)
        with watched_by(count):
            train_segments(job, SegmentSage)
        return len(calls)

    assert count_steps("a", None) == 20
    with pytest.raises(KeyboardInterrupt):
        count_steps("b", stop_at)
    # The run resumes from its last checkpoint.
    assert count_steps("b", None) == 20 - stop_at // 4 * 4
    one, other = ((tmp_path / folder / WEIGHTS).read_bytes() for folder in "ab")
    assert one == other and b"history" not in one
