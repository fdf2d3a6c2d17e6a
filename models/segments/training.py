"""Graph Segment Training of the layout GNN for whole graphs.

Training stores the embeddings of segments (Cao et al., "Learning Large Graph Property Prediction
via Graph Segment Training", NeurIPS 2023). The first phase trains the network on one live segment
per step and stored embeddings of the others. The second phase trains only the head, on fresh
embeddings of all segments. Each phase has a checkpoint.

Shapes: s segments, c configs of a step, p configs of a graph's pool, h channels.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graph_store.stored_graph import read_layout
from data.graphs.graph import distinct_configs
from data.tree import GraphFile
from features.pruning import prune_layout_graph
from models.graph_task import SampledGraphs, begin_layout_network, draw, torch_for
from models.registry import TrainJob
from models.segments.cut import Segment, SegmentedGraph, cut, within
from models.segments.network import SegmentSage, embed_configs
from models.training.device import device_of
from models.training.loop import CHECKPOINT, StepLoss, fit, save_network
from models.training.losses import LOSSES

HEAD_FOLDER = "head"


def segment_weights(live: int, mask: NDArray[np.bool_], keep_stale: float) -> NDArray[np.float64]:
    """Return the weight of each segment's embedding in the graph's sum.

    This is stale embedding dropout, and the sum is unbiased. The live segment is drawn uniformly
    among s, and weighs p + (1 - p) s for p = `keep_stale`. Each other segment has weight 1 with
    probability p, else 0. So the mean weight of a segment is (p + (1 - p) s) / s + (1 - 1 / s) p =
    1.

    Args:
        live: Position of the segment that carries gradients.
        mask: (s,) True for the segments to use.
        keep_stale: Probability p.

    Returns:
        (s,) float64 weights.
    """
    weights = mask.astype(np.float64)
    weights[live] = keep_stale + (1 - keep_stale) * len(mask)
    return weights


class SegmentHistory(nn.Module):
    """The last embeddings of segments, for a fixed pool of configs of each graph.

    The table is a buffer, so it is in checkpoints. An embedding takes 768 bytes at h = 64.
    `entries` has the number of embeddings of each segment of each graph, by `n_embeddings`.
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

    def rows(self, graph: int, segment: int, positions: Tensor) -> Tensor:
        """Return the rows of a segment's embeddings, on the device of the table.

        Args:
            graph: Position of the graph.
            segment: Position of the segment.
            positions: (c,) positions of configs in the pool, on the CPU.

        Returns:
            (c,) rows, or (1,) if configs do not change the segment.
        """
        start, count = self.places[graph][segment]
        rows = start + positions if count > 1 else torch.tensor([start])
        return rows.to(self.values.device)

    def write(self, rows: Tensor, embeddings: Tensor) -> None:
        self.values[rows] = embeddings.detach().to(self.values.dtype)
        self.known[rows] = True


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

    def draw_sample(
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
        graph, pool, sample = self.draw_sample(index, rng)
        positions = torch.from_numpy(sample)
        choices = graph.choices(pool[sample])
        weights, live, stalest = self._draw_segments(graph, rng)
        other_sum = torch.zeros(1, self.net.width, device=device_of(self.net))
        for number in np.flatnonzero(weights).tolist():
            if number != live:
                rows = self.history.rows(index, number, positions)
                if number == stalest:
                    self.history.known[rows] = False
                other_sum = other_sum + self._recall(graph.segments[number], rows, choices)
        scores, embedding = model(graph.segments[live], choices, other_sum, float(weights[live]))
        self.history.write(self.history.rows(index, live, positions), embedding)
        return LOSSES[self.config.loss](scores, graph.runtimes(pool[sample]))

    def _draw_segments(
        self, graph: SegmentedGraph, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], int, int | None]:
        # The weights (s,), the live segment, and a constant segment to recompute.
        varies = np.array([segment.varies for segment in graph.segments])
        varying, constant = np.flatnonzero(varies), np.flatnonzero(~varies)
        live = int(rng.integers(len(varying)))
        mask = rng.random(len(varying)) < self.config.keep_stale
        weights = np.ones(len(varies))
        weights[varying] = segment_weights(live, mask, self.config.keep_stale)
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
        graph, pool, sample = self.draw_sample(index, rng)
        if index not in self.embeddings:
            self.embeddings[index] = embed_configs(self.net, graph, pool)
        of_pool = self.embeddings[index]
        # `model` is the head.
        scores = model(of_pool[torch.from_numpy(sample).to(of_pool.device)])
        return LOSSES[self.config.loss](scores, graph.runtimes(pool[sample]))


def train_segments(job: TrainJob, network: type[SegmentSage]) -> None:
    """Train the layout GNN for whole graphs, and write its weights and its scaler."""
    with torch_for(job, network) as (config, device):
        model, scaler, inputs = begin_layout_network(job, network, job.files, device)
        graphs = tuple(job.files), inputs, config, job.seed, model
        entries = [_n_embeddings_of(job, file) for file in job.files]
        model.history = SegmentHistory(entries, model.width)
        fit(model, SegmentTask(*graphs, model.history), config.training, job, device)
        # Only training needs the history.
        model.history = None
        if config.head_steps:
            training = config.training.model_copy(update={"steps": config.head_steps})
            head_job = replace(job, run_dir=job.run_dir / HEAD_FOLDER)
            fit(model.head, HeadTask(*graphs), training, head_job, device)
        save_network(model, scaler, job.run_dir)
    (job.run_dir / HEAD_FOLDER / CHECKPOINT).unlink(missing_ok=True)


def _n_embeddings_of(job: TrainJob, file: GraphFile) -> list[int]:
    # Building all segments takes as long as the first steps, so the file is only pruned and cut.
    config, graph = job.recipe.segment_sage, read_layout(file)
    pruned = prune_layout_graph(graph, rule=job.recipe.features.prune)
    n_pooled = min(config.table_configs, len(distinct_configs(graph)[0]))
    config_ids = torch.from_numpy(pruned.config_ids)
    parts = cut(len(pruned.kept), config.segment_nodes)
    return [n_pooled if within(part, config_ids).any() else 1 for part in parts]


def n_embeddings(graph: SegmentedGraph, table_configs: int) -> list[int]:
    """Count the stored embeddings of each segment: those of a pool, or 1 if it does not vary."""
    n_pooled = min(table_configs, len(graph.first))
    return [n_pooled if segment.varies else 1 for segment in graph.segments]
