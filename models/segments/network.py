"""The layout GNN for whole graphs, in memory that does not grow with the graph.

The equations within a segment are those of models/layout/cross_config_sage.py. The head reads a sum
over the segments of a graph, (c, h), so segments can be computed one by one, or stored. The
attention across configs acts on this sum, once per graph and not per node. So a node differs
between configs only if a message from a configurable node has reached it (models/segments/cut.py).
The exact normaliser over all configs is one number per channel, known after one pass. The cuts
depend on the order of nodes, so the scores of a graph of several segments do too.

Training stores the embeddings of segments, as in Graph Segment Training (Cao et al., "Learning
Large Graph Property Prediction via Graph Segment Training", NeurIPS 2023). The first phase trains
the network on one live segment per step and stored embeddings of the others. The second phase
trains only the head, on fresh embeddings of all segments. Each phase has a checkpoint.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs
from data.tree import GraphFile
from features.pruning import prune_layout_graph
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig, SageConfig, SegmentSageConfig
from models.config.recipe import FeaturesConfig
from models.graph_task import SampledGraphs, begin_layout_network, draw, torch_for
from models.layout.attention import CrossConfigAttention, log_sum_exp
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.layout.inputs import SparseAggregation, layout_reader
from models.registry import TrainJob
from models.segments.cut import Ring, Segment, SegmentedGraph, cut, segmented, within
from models.training.device import device_of
from models.training.loop import CHECKPOINT, StepLoss, fit, save_network
from models.training.losses import LOSSES

N_POOLS = 3
HEAD_FOLDER = "head"


class SegmentHead(nn.Module):
    """Score configs by the embeddings of their graph, 3 h channels, with attention across configs.

    y = gelu(W g); score = w gelu(V [y, cross-config attention of y]).
    """

    def __init__(self, hidden: int, *, cross_config: bool) -> None:
        super().__init__()
        self.mix = nn.Linear(N_POOLS * hidden, hidden)
        self.configs = CrossConfigAttention() if cross_config else None
        self.out = nn.Sequential(
            nn.Linear(2 * hidden if cross_config else hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, 1, bias=False),
        )

    def mixed(self, pooled: Tensor) -> Tensor:
        return nn.functional.gelu(self.mix(pooled))[None]

    def normaliser(self, pooled: Tensor) -> Tensor | None:
        """Return the attention's normaliser over all configs, or None without attention.

        Args:
            pooled: (c, 3h) embeddings of all configs.

        Returns:
            (1, 1, h).
        """
        if self.configs is None:
            return None
        total = log_sum_exp(self.mixed(pooled), self.configs.sharpness())
        return total - math.log(len(pooled))

    def forward(self, pooled: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Score configs.

        Args:
            pooled: (c, 3h) embeddings.
            normaliser: (1, 1, h) normaliser of all configs. None uses these configs.

        Returns:
            (c,) scores. A lower score means a faster config.
        """
        y = self.mixed(pooled)
        if self.configs is not None:
            y = self.configs(y, normaliser)
        scores: Tensor = self.out(y[0]).squeeze(-1)
        return scores


def segment_weights(live: int, kept: NDArray[np.bool_], keep_stale: float) -> NDArray[np.float64]:
    """Return the weight of each segment's embedding in the graph's sum.

    This is stale embedding dropout, and the sum is unbiased. The live segment is drawn uniformly
    among s, and weighs p + (1 - p) s for p = `keep_stale`. Each other segment has weight 1 with
    probability p, else 0. So the mean weight of a segment is (p + (1 - p) s) / s + (1 - 1 / s) p =
    1.

    Args:
        live: Position of the segment that carries gradients.
        kept: (s,) mask of the segments to use.
        keep_stale: Probability p.

    Returns:
        (s,) float64 weights.
    """
    weights = kept.astype(np.float64)
    weights[live] = keep_stale + (1 - keep_stale) * len(kept)
    return weights


class SegmentHistory(nn.Module):
    """The last embeddings of segments, for a fixed pool of configs of each graph.

    The table is a buffer, so it is in checkpoints. An embedding takes 768 bytes at h = 64.
    `entries` has the number of embeddings of each segment of each graph: the size of the pool, or 1
    for segments that configs do not change.
    """

    def __init__(self, entries: Sequence[Sequence[int]], width: int) -> None:
        super().__init__()
        ends = np.cumsum([count for graph in entries for count in graph]).tolist()
        starts = iter([0, *ends])
        self.places = [[(next(starts), count) for count in graph] for graph in entries]
        self.values: Tensor
        self.known: Tensor
        self.register_buffer("values", torch.zeros(ends[-1], width))
        self.register_buffer("known", torch.zeros(ends[-1], dtype=torch.bool))

    def rows(self, graph: int, segment: int, pooled: Tensor) -> Tensor:
        """Return the rows of a segment's embeddings, on the device of the table.

        Args:
            graph: Position of the graph.
            segment: Position of the segment.
            pooled: (c,) positions of configs in the pool, on the CPU.

        Returns:
            (c,) rows, or (1,) if configs do not change the segment.
        """
        start, count = self.places[graph][segment]
        rows = start + pooled if count > 1 else torch.tensor([start])
        return rows.to(self.values.device)

    def write(self, rows: Tensor, embeddings: Tensor) -> None:
        self.values[rows] = embeddings.detach().to(self.values.dtype)
        self.known[rows] = True


class SegmentSage(nn.Module):
    """Score configs of a graph by one live segment and stored embeddings of the others.

    Shapes: m nodes of a segment, j configurable nodes, a nodes that configs change, c configs, h
    channels.
    """

    def __init__(self, config: SegmentSageConfig) -> None:
        super().__init__()
        self.config = config
        self.width = N_POOLS * config.hidden  # of an embedding
        shared = {name: getattr(config, name) for name in SageConfig.model_fields}
        nodes = CrossConfigSage(CrossConfigSageConfig(**{**shared, "cross_config": False}))
        del nodes.head
        self.nodes = nodes
        self.head = SegmentHead(config.hidden, cross_config=config.cross_config)
        self.history: SegmentHistory | None = None  # only during the training by segments

    def reader(
        self, features: FeaturesConfig, scaler: NodeScaler
    ) -> Callable[[LayoutGraph], SegmentedGraph]:
        """Return the function that cuts a graph into segments.

        Args:
            features: Table `features` of the recipe.
        """
        return partial(
            segmented,
            read=layout_reader(features, scaler),
            segment_nodes=self.config.segment_nodes,
            depth=self.config.blocks,
        )

    def set_known_opcodes(self, opcodes: NDArray[np.uint8]) -> None:
        self.nodes.set_known_opcodes(opcodes)

    def encode(self, segment: Segment, choices: Tensor) -> Tensor:
        """Embed a segment in some configs.

        The sum over segments has three parts of h channels. They are the mean over nodes, the mean
        over segments of the maximum over nodes, and the mean over configurable nodes.

        Args:
            segment: Segment of a graph.
            choices: (c, k) int64 choices of the whole graph.

        Returns:
            (c, 3h), or (1, 3h) if configs do not change the segment.
        """
        net, reach = self.nodes, segment.reach
        shared = net.nodes(segment)  # (m, 1, h)
        if not segment.varies:
            for block in net.blocks:
                shared = block(shared, block.aggregate(shared, segment.neighbours))
            shared = net.norm(shared)
            nothing = torch.zeros_like(shared[0])
            return _shares(segment, shared.sum(dim=0), shared.amax(dim=0), nothing)
        settings = net.settings(segment.vectors, choices[:, segment.columns])  # (j, c, h)
        varying = shared[segment.config_ids] + settings  # (j, c, h)
        for block, ring in zip(net.blocks, reach.rings, strict=True):
            shared, varying = advance(block, shared, varying, ring, segment.neighbours)
        constant = net.norm(shared[reach.constant])  # (m - a, 1, h)
        varying = net.norm(varying)  # (a, c, h)
        highest = varying.amax(dim=0)
        if len(constant):
            highest = torch.maximum(highest, constant.amax(dim=0))
        total = varying.sum(dim=0) + constant.sum(dim=0)
        return _shares(segment, total, highest, varying[reach.configurable].sum(dim=0))

    def forward(
        self, segment: Segment, choices: Tensor, others: Tensor, weight: float
    ) -> tuple[Tensor, Tensor]:
        """Score configs by the live segment and the sum of the others.

        Args:
            segment: Live segment.
            choices: (c, k) int64 choices of the whole graph.
            others: (c, 3h) or (1, 3h) sum over the other segments.
            weight: Weight of the live segment.

        Returns:
            (c,) float32 scores, and the embedding of the live segment.
        """
        embedding = self.encode(segment, choices)
        pooled = (others + weight * embedding).expand(len(choices), -1)
        return self.head(pooled), embedding

    @torch.inference_mode()
    def score_all(
        self, graph: SegmentedGraph, *, chunk_configs: int | None = None
    ) -> NDArray[np.float32]:
        """Score every config of a graph exactly, in bounded memory.

        The embeddings take 12 h bytes per distinct config, in addition to the memory of
        `embed_configs`.

        Args:
            chunk_configs: The argument of `embed_configs`.

        Returns:
            (c,) float32 scores. A lower score means a faster config.
        """
        every = np.arange(len(graph.first))
        pooled = embed_configs(self, graph, every, chunk_configs=chunk_configs)
        normaliser = self.head.normaliser(pooled[: len(every) - graph.n_query_configs])
        scores: NDArray[np.float32] = self.head(pooled, normaliser).float().cpu().numpy()
        return scores[graph.group]


def _shares(segment: Segment, *sums: Tensor) -> Tensor:
    parts = [total / number for total, number in zip(sums, segment.of_graph, strict=True)]
    return torch.cat(parts, dim=-1)


@torch.no_grad()
def embed_configs(
    model: SegmentSage,
    graph: SegmentedGraph,
    distinct: NDArray[np.int64],
    *,
    chunk_configs: int | None = None,
) -> Tensor:
    """Embed a graph in some configs.

    Args:
        model: Network.
        graph: Graph in segments.
        distinct: (r,) positions among the distinct configs.
        chunk_configs: Number of configs in memory at once. None derives it from
            `inference_tensor_mib` for an (a, c, h) tensor.

    Returns:
        (r, 3h).
    """
    if chunk_configs is None:
        largest = max(len(segment.reach.reached) for segment in graph.segments)
        bytes_per_config = max(1, largest) * model.config.hidden * 4
        chunk_configs = max(4, (model.config.inference_tensor_mib << 20) // bytes_per_config)
    device = device_of(model)
    no_choices = torch.zeros(1, 0, dtype=torch.int64, device=device)
    base = torch.zeros(1, model.width, device=device)
    for segment in graph.segments:
        if not segment.varies:
            base = base + model.encode(segment, no_choices)
    pooled = base.repeat(len(distinct), 1)
    for start in range(0, len(distinct), chunk_configs):
        rows = slice(start, start + chunk_configs)
        choices = graph.choices(distinct[rows])
        for segment in graph.segments:
            if segment.varies:
                pooled[rows] += model.encode(segment, choices)
    return pooled


def advance(
    block: SageBlock, shared: Tensor, varying: Tensor, ring: Ring, neighbours: SparseAggregation
) -> tuple[Tensor, Tensor]:
    """Apply a block without attention across configs to a segment.

    Args:
        block: Block of the network.
        shared: (n, 1, h) values of all nodes. Those of `ring.varying` are arbitrary.
        varying: (b, c, h) values of the nodes `ring.varying`.
        ring: Aggregation of the nodes that vary after the block.
        neighbours: Edges of the segment.

    Returns:
        (n, 1, h) values, arbitrary for `ring.after`, and the (a, c, h) values of `ring.after`.
    """
    moved = block(ring.join(shared, varying), block.aggregate_split(shared, varying, ring))
    return block(shared, block.aggregate(shared, neighbours)), moved


@dataclass(frozen=True)
class PooledGraphs(SampledGraphs[SegmentedGraph], ABC):
    """Train graphs with a fixed pool of configs each, sampled by `seed`.

    Training uses only the pool, because the table of embeddings grows with it.
    """

    net: SegmentSage

    def step_loss(self, model: nn.Module, step: int, rng: np.random.Generator) -> StepLoss:
        indices = self.graphs_of(step)
        losses = [self.graph_loss(model, index, rng) for index in indices]
        return torch.stack(losses).mean(), self.names_of(indices)

    @abstractmethod
    def graph_loss(self, model: nn.Module, index: int, rng: np.random.Generator) -> Tensor:
        """Return the loss, (), of a sample of a graph's pool."""

    def sampled(
        self, index: int, rng: np.random.Generator
    ) -> tuple[SegmentedGraph, NDArray[np.int64], NDArray[np.int64]]:
        # The graph, its pool of distinct configs (p,), and positions in the pool (c,).
        graph = self.inputs(self.files[index])
        pool_rng = np.random.default_rng([self.seed, 1, index])
        pool = draw(pool_rng, len(graph.first), self.config.table_configs)
        return graph, pool, draw(rng, len(pool), self.config.configs_per_step)


@dataclass(frozen=True)
class SegmentTask(PooledGraphs):
    """Train on a sample of a graph's pool, by one live segment and stored embeddings of the others.

    A segment that configs do not change is never live or dropped. Missing embeddings are computed
    without gradients.
    """

    history: SegmentHistory

    def graph_loss(self, model: nn.Module, index: int, rng: np.random.Generator) -> Tensor:
        graph, pool, sample = self.sampled(index, rng)
        positions = torch.from_numpy(sample)
        choices = graph.choices(pool[sample])
        weights, live, stalest = self._draw_segments(graph, rng)
        others = torch.zeros(1, self.net.width, device=device_of(self.net))
        for number in np.flatnonzero(weights).tolist():
            if number != live:
                rows = self.history.rows(index, number, positions)
                if number == stalest:
                    self.history.known[rows] = False
                others = others + self._recall(graph.segments[number], rows, choices)
        scores, embedding = model(graph.segments[live], choices, others, float(weights[live]))
        self.history.write(self.history.rows(index, live, positions), embedding)
        return LOSSES[self.config.loss](scores, graph.runtimes(pool[sample]))

    def _draw_segments(
        self, graph: SegmentedGraph, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], int, int | None]:
        # The weights (s,), the live segment, and a constant segment to recompute.
        varies = np.array([segment.varies for segment in graph.segments])
        varying, constant = np.flatnonzero(varies), np.flatnonzero(~varies)
        live = int(rng.integers(len(varying)))
        kept = rng.random(len(varying)) < self.config.keep_stale
        weights = np.ones(len(varies))
        weights[varying] = segment_weights(live, kept, self.config.keep_stale)
        stalest = int(rng.choice(constant)) if len(constant) else None
        return weights, int(varying[live]), stalest

    def _recall(self, segment: Segment, rows: Tensor, choices: Tensor) -> Tensor:
        unknown = ~self.history.known[rows]
        if unknown.any():
            with torch.no_grad():
                fresh = self.net.encode(segment, choices[unknown] if segment.varies else choices)
            self.history.write(rows[unknown], fresh)
        return self.history.values[rows]


@dataclass(frozen=True)
class HeadTask(PooledGraphs):
    """Train the head on samples of the pools. The embeddings are computed once per graph."""

    embeddings: dict[int, Tensor] = field(default_factory=dict)  # (p, 3h) by graph

    def graph_loss(self, model: nn.Module, index: int, rng: np.random.Generator) -> Tensor:
        graph, pool, sample = self.sampled(index, rng)
        if index not in self.embeddings:
            self.embeddings[index] = embed_configs(self.net, graph, pool)
        pooled = self.embeddings[index]
        scores = model(pooled[torch.from_numpy(sample).to(pooled.device)])  # `model` is the head
        return LOSSES[self.config.loss](scores, graph.runtimes(pool[sample]))


def train(job: TrainJob, network: type[SegmentSage]) -> None:
    """Train the layout GNN for whole graphs, and write its weights and its scaler."""
    with torch_for(job, network) as (config, device):
        model, scaler, inputs = begin_layout_network(job, network, job.files, device)
        graphs = tuple(job.files), inputs, config, job.seed, model
        model.history = SegmentHistory([_entries(job, file) for file in job.files], model.width)
        fit(model, SegmentTask(*graphs, model.history), config.training, job, device)
        # Only training needs the history.
        model.history = None
        if config.head_steps:
            training = config.training.model_copy(update={"steps": config.head_steps})
            head_job = replace(job, run_dir=job.run_dir / HEAD_FOLDER)
            fit(model.head, HeadTask(*graphs), training, head_job, device)
        save_network(model, scaler, job.run_dir)
    (job.run_dir / HEAD_FOLDER / CHECKPOINT).unlink(missing_ok=True)


def _entries(job: TrainJob, file: GraphFile) -> list[int]:
    config, graph = job.recipe.segment_sage, read_layout(file)
    pruned = prune_layout_graph(graph, rule=job.recipe.features.prune)
    pool = min(config.table_configs, len(distinct_configs(graph)[0]))
    config_ids = torch.from_numpy(pruned.config_ids)
    parts = cut(len(pruned.kept), config.segment_nodes)
    return [pool if within(part, config_ids).any() else 1 for part in parts]
