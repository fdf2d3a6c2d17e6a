"""The layout GNN for whole graphs, in memory that does not grow with the graph.

The equations within a segment are those of models/layout/cross_config_sage.py. The head reads a sum
over the segments of a graph, (c, h), so segments can be computed one by one, or stored. The
attention across configs acts on this sum, once per graph and not per node. So a node differs
between configs only if a message from a configurable node has reached it (models/segments/cut.py).
The exact normaliser over all configs is one number per channel, known after one pass. The cuts
depend on the order of nodes, so the scores of a graph of several segments do too. The training is
in models/segments/training.py.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from data.graphs.graph import LayoutGraph
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig, SageConfig, SegmentSageConfig
from models.config.recipe import FeaturesConfig
from models.layout.attention import CrossConfigAttention, log_sum_exp
from models.layout.cross_config_sage import CrossConfigSage, SageBlock
from models.layout.inputs import SparseAggregation, layout_reader
from models.layout.network import Positions
from models.segments.cut import Ring, Segment, SegmentedGraph, cut_graph
from models.training.device import device_of, without_autocast
from models.training.losses import LOSSES, Loss

N_POOLS = 3


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

    def hidden(self, embeddings: Tensor) -> Tensor:
        return nn.functional.gelu(self.mix(embeddings.float()))[None]

    @without_autocast
    def normaliser(self, embeddings: Tensor) -> Tensor | None:
        """Return the attention's normaliser over all configs, (1, 1, h), if there is attention."""
        if self.configs is None:
            return None
        total = log_sum_exp(self.hidden(embeddings), self.configs.sharpness())
        return total - math.log(len(embeddings))

    @without_autocast
    def forward(self, embeddings: Tensor, normaliser: Tensor | None = None) -> Tensor:
        """Return (c,) scores in float32, because scores in half precision have ties.

        Args:
            embeddings: (c, 3h) embeddings.
            normaliser: (1, 1, h) normaliser of all configs. None uses these configs.
        """
        y = self.hidden(embeddings)
        if self.configs is not None:
            y = self.configs(y, normaliser)
        scores: Tensor = self.out(y[0]).squeeze(-1)
        return scores


class SegmentSage(nn.Module):
    """Score configs of a graph by the sum of its segments' embeddings.

    Shapes: m nodes of a segment, j configurable nodes, a nodes that configs change, c configs, h
    channels.
    """

    # As in a LayoutNetwork, whose training this network shares. Its inputs are of another type.
    losses: ClassVar[Mapping[str, Loss]] = LOSSES
    reads_statistics = False
    is_recordable = False

    def __init__(self, config: SegmentSageConfig) -> None:
        super().__init__()
        self.config = config
        self.width = N_POOLS * config.hidden  # of an embedding
        shared = {name: getattr(config, name) for name in SageConfig.model_fields}
        nodes = CrossConfigSage(CrossConfigSageConfig(**{**shared, "cross_config": False}))
        del nodes.head
        self.nodes = nodes
        self.head = SegmentHead(config.hidden, cross_config=config.cross_config)

    def reader(
        self, features: FeaturesConfig, scaler: NodeScaler
    ) -> Callable[[LayoutGraph], SegmentedGraph]:
        """Return the function that cuts a graph into segments, by the recipe's `features`."""
        return partial(
            cut_graph,
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

    def forward(self, inputs: SegmentedGraph, distinct: Positions | Tensor) -> Tensor:
        """Score some configs of a graph by all of its segments.

        Only the embeddings of segments stay in memory. The backward pass computes the segments
        again, one after the other, and its gradient is exactly that of their sum (Chen et al.,
        "Training Deep Nets with Sublinear Memory Cost", 2016).

        Args:
            inputs: Graph in segments.
            distinct: (c,) positions among the distinct configs.

        Returns:
            (c,) float32 scores that compare these configs with each other.
        """
        choices = inputs.choices(distinct)
        total = torch.zeros(len(choices), self.width, device=choices.device)
        for segment in inputs.segments:
            total = total + self._encode_again(segment, choices, inputs)
        scores: Tensor = self.head(total)
        return scores

    def _encode_again(self, segment: Segment, choices: Tensor, graph: SegmentedGraph) -> Tensor:
        # A single segment is in memory anyway.
        if len(graph.segments) == 1:
            return self.encode(segment, choices)
        embedding: Tensor = checkpoint(
            self.encode, segment, choices, use_reentrant=False, preserve_rng_state=False
        )
        return embedding

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
        distinct = np.arange(len(graph.first))
        embeddings = embed_configs(self, graph, distinct, chunk_configs=chunk_configs)
        normaliser = self.head.normaliser(embeddings[: len(distinct) - graph.n_query_configs])
        scores: NDArray[np.float32] = self.head(embeddings, normaliser).float().cpu().numpy()
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
        largest = max(len(segment.reach.varying) for segment in graph.segments)
        bytes_per_config = max(1, largest) * model.config.hidden * 4
        chunk_configs = max(4, (model.config.inference_tensor_mib << 20) // bytes_per_config)
    device = device_of(model)
    no_choices = torch.zeros(1, 0, dtype=torch.int64, device=device)
    base = torch.zeros(1, model.width, device=device)
    for segment in graph.segments:
        if not segment.varies:
            base = base + model.encode(segment, no_choices)
    embeddings = base.repeat(len(distinct), 1)
    for start in range(0, len(distinct), chunk_configs):
        rows = slice(start, start + chunk_configs)
        choices = graph.choices(distinct[rows])
        for segment in graph.segments:
            if segment.varies:
                embeddings[rows] += model.encode(segment, choices)
    return embeddings


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
    next_varying = block(ring.join(shared, varying), block.aggregate_split(shared, varying, ring))
    return block(shared, block.aggregate(shared, neighbours)), next_varying
