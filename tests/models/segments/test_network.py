"""The layout GNN for whole graphs: segments, config-dependent nodes, stale sums and resuming."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from common.progress import watched_by
from data.cache import LRUCache
from data.graphs.graph import LayoutGraph
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig, SegmentSageConfig
from models.config.recipe import FeaturesConfig, Recipe
from models.layout.cross_config_sage import SageBlock
from models.layout.inputs import SparseAggregation, layout_reader
from models.registry import TrainJob
from models.segments.cut import SegmentedGraph, cut_graph, receptive_field
from models.segments.network import SegmentSage, advance, embed_configs
from models.segments.training import (
    SegmentHistory,
    SegmentTask,
    n_embeddings,
    segment_weights,
    train_segments,
)
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


@pytest.mark.parametrize("keep_stale", [0.0, 0.3, 0.5, 1.0])
def test_each_segments_expected_weight_is_one(keep_stale: float) -> None:
    """Over all live segments and all masks, each by its probability; nothing is sampled."""
    expected, total = np.zeros(4), 0.0
    for live in range(4):
        for mask in itertools.product([False, True], repeat=3):
            chance = keep_stale ** sum(mask) * (1 - keep_stale) ** (3 - sum(mask)) / 4
            expected += chance * segment_weights(live, np.insert(mask, live, False), keep_stale)
            total += chance
    assert total == pytest.approx(1)
    np.testing.assert_allclose(expected, 1)


def one_graph_task(
    model: SegmentSage, graph: LayoutGraph, parts: SegmentedGraph, **changes: object
) -> SegmentTask:
    config = SegmentSageConfig(configs_per_step=8, table_configs=12, **changes)
    entries = [n_embeddings(parts, 12)]
    cache = LRUCache(lambda _: parts, size=lambda _: 1, max_bytes=1)
    history = SegmentHistory(entries, model.width)
    return SegmentTask((graph.file,), cache, config, seed=3, net=model, history=history)


def test_with_all_segments_kept_and_fresh_a_step_has_the_full_loss(
    model: SegmentSage, layout_graph: LayoutGraph, parts: SegmentedGraph
) -> None:
    task = one_graph_task(model, layout_graph, parts, keep_stale=1)
    for seed in range(4):  # the table is empty, then partly, then wholly known
        loss, _ = task.step_loss(model, 0, np.random.default_rng(seed))
        rng = np.random.default_rng(seed)
        _, pool, sample = task.draw_sample(0, rng)
        distinct = pool[sample]
        with torch.no_grad():
            pooled = plain_embedding(model, parts, parts.choices(distinct))
            runtime_ns = torch.from_numpy(parts.runtime_ns[distinct])
            full = LOSSES["pairwise_hinge"](model.head(pooled), runtime_ns)
        torch.testing.assert_close(loss.detach(), full)


@pytest.mark.parametrize("stop_at", [2, 7, 13, 18])
def test_a_broken_off_run_ends_as_an_undisturbed_one(
    layout_graph: LayoutGraph, tmp_path: Path, stop_at: int
) -> None:
    """Steps 0..11 train the network, 12..19 the head."""
    training = {"steps": 12, "warmup_steps": 2, "checkpoint_every": 4, "log_every": 4}
    config = {"hidden": 8, "segment_nodes": SEGMENT_NODES, "head_steps": 8, "table_configs": 16}
    config |= {"configs_per_step": 8, "training": training}
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


def test_one_segment_in_which_configs_differ_carries_gradients(
    model: SegmentSage, layout_graph: LayoutGraph, scaler: NodeScaler
) -> None:
    parts = segments_of(layout_graph, scaler, 5)
    task = one_graph_task(model, layout_graph, parts, keep_stale=0)
    for segment in parts.segments:
        segment.node_feat.requires_grad_()
    for seed in range(10):
        task.step_loss(model, 0, np.random.default_rng(seed))[0].backward()
        (live,) = (segment for segment in parts.segments if segment.node_feat.grad is not None)
        assert live.varies
        live.node_feat.grad = None
    constant = [number for number, segment in enumerate(parts.segments) if not segment.varies]
    for number in constant:
        assert task.history.known[task.history.rows(0, number, torch.arange(12))].all()
    assert len(constant) > 3
