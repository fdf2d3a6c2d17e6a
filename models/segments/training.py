"""Training of the layout GNN for whole graphs: with all segments, or with some live segments.

With `live_segments` = 0 a step trains all segments of its graphs, and its gradient is that of the
whole graph (models/segments/network.py). Otherwise a step trains some segments and uses stored
embeddings of the others (Cao et al., "Learning Large Graph Property Prediction via Graph Segment
Training", NeurIPS 2023).

Shapes: s segments, c configs of a step, p configs of a graph's pool, h channels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from data.graph_store.stored_graph import read_layout
from data.graphs.graph import distinct_configs
from data.tree import GraphFile
from features.pruning import prune_layout_graph
from models.graph_task import SampledGraphs, begin_layout_network, draw, loss_of, torch_for
from models.layout.network import Positions, train_layout_network
from models.registry import TrainJob
from models.segments.cut import SegmentedGraph, cut
from models.segments.network import SegmentSage
from models.training.loop import StepLoss, fit, save_network


class SegmentHistory(nn.Module):
    """The last embeddings of segments, for a fixed pool of configs of each graph.

    They are buffers, so they are in checkpoints. NaN marks a missing embedding. An embedding takes
    768 bytes at h = 64. `sizes` has s and p of each graph.
    """

    def __init__(self, sizes: list[tuple[int, int]], width: int) -> None:
        super().__init__()
        for number, size in enumerate(sizes):
            self.register_buffer(f"of_{number}", torch.full((*size, width), torch.nan))

    def __getitem__(self, graph: int) -> Tensor:
        """Return the stored embeddings of a graph, (s, p, 3h), by its position."""
        return self.get_buffer(f"of_{graph}")


@dataclass(frozen=True)
class StoredTask(SampledGraphs[SegmentedGraph]):
    """Train some segments of each graph, with stored embeddings of the others.

    The pool of a graph is cut once into groups of configs, and a step takes one group. So the
    embeddings of a segment that a step compares are of the same age. Groups of random configs had
    a lower tau in 8 of 10 trainings.

    A segment that configs do not change costs one config, so every step trains it.
    """

    net: SegmentSage
    history: SegmentHistory

    def step_loss(self, model: nn.Module, step: int, rng: np.random.Generator) -> StepLoss:
        indices = self.graphs_of(step)
        losses = [self._graph_loss(index, rng) for index in indices]
        return torch.stack(losses).mean(), self.names_of(indices)

    def _graph_loss(self, index: int, rng: np.random.Generator) -> Tensor:
        graph, stored = self.inputs(self.files[index]), self.history[index]
        group, distinct = self.draw_group(index, len(graph.first), rng)
        rows = torch.from_numpy(group).to(stored.device)
        choices = graph.choices(distinct)
        total = torch.zeros(len(group), self.net.width, device=stored.device)
        varying = [number for number, part in enumerate(graph.segments) if part.varies]
        live = rng.permutation(varying)[: self.config.live_segments].tolist()
        for number, segment in enumerate(graph.segments):
            is_live = number in live or not segment.varies
            embedding = stored[number, rows]
            if is_live or embedding.isnan().any():
                with torch.set_grad_enabled(is_live):
                    embedding = self.net.encode(segment, choices)
                stored[number, rows] = embedding.detach().to(stored.dtype)
            total = total + embedding
        return loss_of(self.net, self.net.head(total), graph.runtimes(distinct))

    def draw_group(
        self, index: int, n_distinct: int, rng: np.random.Generator
    ) -> tuple[Positions, Positions]:
        """Draw a group of a graph: positions in the pool, and among the distinct configs, (c,)."""
        pool_rng = np.random.default_rng([self.seed, 1, index])
        pool = pool_rng.permutation(draw(pool_rng, n_distinct, self.config.table_configs))
        n_groups = max(1, len(pool) // self.config.configs_per_step)
        group = np.array_split(np.arange(len(pool)), n_groups)[rng.integers(n_groups)]
        return group, pool[group]


def train_segments(job: TrainJob, network: type[Any]) -> None:
    """Train the layout GNN for whole graphs, and write its weights and its scaler."""
    if not getattr(job.recipe, job.model).live_segments:
        train_layout_network(job, network)
        return
    with torch_for(job, network) as (config, device):
        model, scaler, inputs = begin_layout_network(job, network, job.files, device)
        model.history = SegmentHistory([_stored_size(job, f) for f in job.files], model.width)
        task = StoredTask(tuple(job.files), inputs, config, job.seed, model, model.history)
        fit(model, task, config.training, job, device)
        # Only training needs the history.
        del model.history
        save_network(model, scaler, job.run_dir)


def _stored_size(job: TrainJob, file: GraphFile) -> tuple[int, int]:
    # Numbers of segments and of configs. Building the segments takes as long as the first steps.
    config, graph = getattr(job.recipe, job.model), read_layout(file)
    n_kept = len(prune_layout_graph(graph, rule=job.recipe.features.prune).kept)
    n_pooled = min(config.table_configs, len(distinct_configs(graph)[0]))
    return len(cut(n_kept, config.segment_nodes)), n_pooled
