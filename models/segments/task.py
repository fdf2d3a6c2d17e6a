"""Train the layout GNN for whole graphs, by Graph Segment Training.

Two phases, each with its own checkpoint: all of the network on one live segment per step, the
others remembered; then the head alone on fresh embeddings of all segments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.distinct import distinct_configs
from data.read import read_layout
from features.pruning import PrunedNodes, prune_layout_graph
from models.graph_task import DrawnGraphs, learn_nodes, torch_for
from models.segments.cut import Segment, SegmentedGraph, cut, within
from models.segments.network import SegmentHistory, SegmentSage, embed_configs, segment_weights
from models.training.dataset import LRUCache
from models.training.device import device_of
from models.training.jobs import TrainJob
from models.training.loop import CHECKPOINT, fit
from models.training.losses import LOSSES
from models.training.weights import save_network

HEAD_FOLDER = "head"


@dataclass(frozen=True)
class PooledGraphs(DrawnGraphs[SegmentedGraph]):
    """The train graphs, and of each a fixed pool of configs, drawn by `seed`.

    Only the pool's configs are learned from: what is remembered of segments grows with it.
    """

    seed: int
    net: SegmentSage

    def drawn(
        self, index: int, rng: np.random.Generator
    ) -> tuple[SegmentedGraph, NDArray[np.int64], NDArray[np.int64]]:
        """Return a graph, its pool of distinct configs (p,), a step's as positions in it (c,)."""
        graph = self.inputs(self.files[index])
        order = np.random.default_rng([self.seed, 1, index]).permutation(len(graph.first))
        pool = order[: self.config.table_configs]
        return graph, pool, rng.permutation(len(pool))[: self.config.configs_per_step]


@dataclass(frozen=True)
class SegmentTask(PooledGraphs):
    """Ranks a sample of a graph's pool by one live segment, and by what is known of the others.

    The live segment and the dropped ones are the same for all configs of a step, so that these
    differ by their layouts alone. Segments in which configs do not differ are never live or
    dropped. An embedding that is needed and was never computed, or that is not to be remembered, is
    computed then, without gradients.
    """

    history: SegmentHistory

    def graph_loss(self, model: nn.Module, index: int, rng: np.random.Generator) -> Tensor:
        """Return the loss, (), of `configs_per_step` configs of the pool."""
        graph, pool, sample = self.drawn(index, rng)
        positions = torch.from_numpy(sample)
        choices = graph.choices(pool[sample])
        weights, live, stalest = self._draw_segments(graph, rng)
        others = torch.zeros(1, self.net.width, device=device_of(self.net))
        for number in np.flatnonzero(weights).tolist():
            if number != live:
                rows = self.history.rows(index, number, positions)
                if number == stalest or not self.config.history:
                    self.history.known[rows] = False
                others = others + self._recall(graph.segments[number], rows, choices)
        scores, embedding = model(graph.segments[live], choices, others, float(weights[live]))
        self.history.write(self.history.rows(index, live, positions), embedding)
        return LOSSES[self.config.loss](scores, graph.runtimes(pool[sample]))

    def _draw_segments(
        self, graph: SegmentedGraph, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], int, int | None]:
        """Return each segment's weight (s,), the live one, and a constant one to compute anew."""
        varies = np.array([segment.varies for segment in graph.segments])
        varying, constant = np.flatnonzero(varies), np.flatnonzero(~varies)
        live = int(rng.integers(len(varying)))
        keep_stale = self.config.keep_stale
        weights = np.ones(len(varies))
        kept = rng.random(len(varying)) < keep_stale
        weights[varying] = segment_weights(live, kept, keep_stale)
        stalest = int(rng.choice(constant)) if len(constant) else None
        return weights, int(varying[live]), stalest

    def _recall(self, segment: Segment, rows: Tensor, choices: Tensor) -> Tensor:
        """Return what is known of a segment at `rows`, (c, 3h) or (1, 3h); complete it first."""
        unknown = ~self.history.known[rows]
        if unknown.any():
            with torch.no_grad():
                fresh = self.net.encode(segment, choices[unknown] if segment.varies else choices)
            self.history.write(rows[unknown], fresh)
        return self.history.values[rows]


@dataclass(frozen=True)
class HeadTask(PooledGraphs):
    """Ranks a sample of a graph's pool by fresh embeddings of all its segments.

    The rest of the network no longer changes, so a graph is embedded once, segment by segment,
    when it is first drawn; 12 h bytes per config of its pool are kept.
    """

    known: dict[int, Tensor] = field(default_factory=dict)

    def graph_loss(self, model: nn.Module, index: int, rng: np.random.Generator) -> Tensor:
        """Return the loss, (), of `configs_per_step` configs of the pool; `model` is the head."""
        graph, pool, sample = self.drawn(index, rng)
        if index not in self.known:
            self.known[index] = embed_configs(self.net, graph, pool)  # (p, 3h)
        fresh = self.known[index]
        scores = model(fresh[torch.from_numpy(sample).to(fresh.device)])
        return LOSSES[self.config.loss](scores, graph.runtimes(pool[sample]))


def train(job: TrainJob, network: type[SegmentSage]) -> None:
    """Train the layout GNN for whole graphs; write its weights with all it needs to read graphs.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    features = job.recipe.features
    with torch_for(job) as (config, device):
        entries: list[list[int]] = []
        scaler, opcodes = learn_nodes(_survey(job, entries), scaling=features.scaling)
        model = network(config)
        model.set_known_opcodes(opcodes)
        read = model.reader(features, scaler)
        inputs = LRUCache(lambda file: read(read_layout(file)).to(device))
        graphs = tuple(job.files), inputs, config, job.seed, model
        model.history = SegmentHistory(entries, model.width)
        fit(model, SegmentTask(*graphs, model.history), config.training, job, device)
        model.history = None  # it is of no use but to go on with training
        if config.head_steps:  # the rest of the model stays as it is
            training = config.training.model_copy(update={"steps": config.head_steps})
            head_job = replace(job, run_dir=job.run_dir / HEAD_FOLDER)
            fit(model.head, HeadTask(*graphs), training, head_job, device)
        save_network(model, scaler, job.run_dir)
    (job.run_dir / HEAD_FOLDER / CHECKPOINT).unlink(missing_ok=True)


def _survey(job: TrainJob, entries: list[list[int]]) -> Iterator[PrunedNodes]:
    config = job.recipe.segment_sage
    for file in job.files:
        graph = read_layout(file)
        pruned, nodes = prune_layout_graph(graph, rule=job.recipe.features.prune)
        pool = min(config.table_configs, len(distinct_configs(graph)[0]))
        parts = cut(len(pruned.kept), config.segment_nodes)
        config_ids = torch.from_numpy(pruned.config_ids)
        entries.append([pool if within(part, config_ids).any() else 1 for part in parts])
        yield nodes
