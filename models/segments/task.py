"""Train and load the layout GNN for whole graphs, by Graph Segment Training.

Two phases, each with its own checkpoint: all of the network on one live segment per step, the
others remembered; then the head alone on fresh embeddings of all segments.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph, LayoutGraph
from data.read import read_layout
from data.tree import GraphFile
from features.pruning.nodes import prune_layout_graph
from features.scaling import NodeScaler, fit_node_scaler
from models.config.networks import SegmentSageConfig
from models.config.recipe import Recipe
from models.segments.cut import Segment, SegmentedGraph, cut, segmented
from models.segments.network import (
    SegmentHistory,
    SegmentSage,
    chunk_for,
    embed_configs,
    score_all,
    segment_weights,
)
from models.training.dataset import LRUCache
from models.training.device import device_of, ranking_device, torch_prepared, training_device
from models.training.jobs import TrainJob
from models.training.loop import CHECKPOINT, StepLoss, fit
from models.training.losses import LOSSES, PAIRWISE_LOSSES, order_confidence
from models.training.samplers import SAMPLERS
from models.training.weights import load_network, save_network

HEAD_FOLDER = "head"


@dataclass(frozen=True)
class TrainGraphs:
    """The train graphs, and of each a fixed pool of configs.

    Only the pool's configs are learned from: what is remembered of segments grows with it.

    Attributes:
        files: train graphs that a ranker can learn from.
        segmented: makes or finds the segments of a graph.
        config: the model's configuration.
        seed: draws the pools.
    """

    files: tuple[GraphFile, ...]
    segmented: LRUCache[SegmentedGraph]
    config: SegmentSageConfig
    seed: int

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw the graphs of a step, as positions in `files`."""
        return rng.permutation(len(self.files))[: self.config.graphs_per_step]

    def prefetch(self, rng: np.random.Generator) -> None:
        """Begin to read the graphs of the step that `rng` draws."""
        self.segmented.prefetch([self.files[index] for index in self.draw(rng)])

    def pool(self, index: int, n_distinct: int) -> NDArray[np.int64]:
        """Return the distinct configs of the graph at `index` that are learned from; (p,)."""
        rng = np.random.default_rng([self.seed, 1, index])
        return rng.permutation(n_distinct)[: self.config.table_configs]

    def sample(
        self, runtime_ns: NDArray[np.float64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw a step's configs from a pool of runtimes (p,), as positions in it; (c,)."""
        return SAMPLERS[self.config.sampler](runtime_ns, self.config.configs_per_step, rng)

    def loss(self, scores: Tensor, runtime_ns: NDArray[np.float64], noise: float) -> Tensor:
        """Return the loss on the configs (c,) of a graph, whose runtimes scatter by `noise`."""
        runtimes = torch.from_numpy(runtime_ns).to(scores.device)
        if self.config.noise_weighted_pairs:
            weights = order_confidence(runtimes, noise)
            return PAIRWISE_LOSSES[self.config.loss](scores, runtimes, weights=weights)
        return LOSSES[self.config.loss](scores, runtimes)

    def named(self, indices: NDArray[np.int64]) -> str:
        """Return the names of graphs, for messages."""
        return ", ".join(self.files[index].name for index in indices)


@dataclass(frozen=True)
class SegmentTask:
    """Ranks a sample of a graph's pool by one live segment, and by what is known of the others.

    The live segment and the dropped ones are the same for all configs of a step, so that these
    differ by their layouts alone. Segments in which configs do not differ teach no order: none is
    ever live or dropped, and one of them, drawn anew each step, is computed without gradients for
    one config's cost. An embedding that is needed and was never computed is computed then, without
    gradients; once the table is full, a step's cost does not grow with the graph but for its reads.
    """

    graphs: TrainGraphs
    net: SegmentSage
    history: SegmentHistory

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `graphs_per_step` random graphs."""
        chosen = self.graphs.draw(rng)
        losses = [self._graph_loss(model, int(index), rng) for index in chosen]
        return StepLoss(torch.stack(losses).mean(), self.graphs.named(chosen))

    def prefetch(self, rng: np.random.Generator) -> None:
        """Begin to read the graphs of the step that `rng` draws."""
        self.graphs.prefetch(rng)

    def _graph_loss(self, model: nn.Module, index: int, rng: np.random.Generator) -> Tensor:
        graph = self.graphs.segmented(self.graphs.files[index])
        pool = self.graphs.pool(index, len(graph.shared.first))
        runtime_ns = graph.shared.runtime_ns[pool]
        sample = self.graphs.sample(runtime_ns, rng)
        choices = graph.shared.choices(pool[sample])
        weights, live, stalest = self._draw_segments(graph, rng)
        others = torch.zeros(1, self.net.width, device=device_of(self.net))
        for number in np.flatnonzero(weights).tolist():
            if number != live:
                rows = self.history.rows(index, number, torch.from_numpy(sample))
                if number == stalest:
                    self.history.forget(rows)
                others = others + self._recall(graph.segments[number], rows, choices)
        segment = graph.segments[live]
        scores, embedding = model(segment, choices, others, float(weights[live]))
        rows = self.history.rows(index, live, torch.from_numpy(sample))
        self.history.write(rows, embedding)
        return self.graphs.loss(scores, runtime_ns[sample], graph.shared.noise)

    def _draw_segments(
        self, graph: SegmentedGraph, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], int, int | None]:
        """Return each segment's weight (s,), the live one, and a constant one to compute anew."""
        varies = np.array([segment.varies for segment in graph.segments])
        varying, constant = np.flatnonzero(varies), np.flatnonzero(~varies)
        live = int(rng.integers(len(varying)))
        keep_stale = self.graphs.config.keep_stale
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
        return self.history.read(rows)


@dataclass(frozen=True)
class HeadTask:
    """Ranks a sample of a graph's pool by fresh embeddings of all its segments.

    The rest of the network no longer changes, so a graph is embedded once, segment by segment,
    when it is first drawn; 12 h bytes per config of its pool are kept.
    """

    graphs: TrainGraphs
    net: SegmentSage
    known: dict[int, Tensor] = field(default_factory=dict)

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `graphs_per_step` random graphs; `model` is the head."""
        chosen = self.graphs.draw(rng)
        losses = []
        for index in chosen.tolist():
            shared = self.graphs.segmented(self.graphs.files[index]).shared
            runtime_ns = shared.runtime_ns[self.graphs.pool(index, len(shared.first))]
            sample = self.graphs.sample(runtime_ns, rng)
            fresh = self._fresh(index)
            scores = model(fresh[torch.from_numpy(sample).to(fresh.device)])
            losses.append(self.graphs.loss(scores, runtime_ns[sample], shared.noise))
        return StepLoss(torch.stack(losses).mean(), self.graphs.named(chosen))

    def _fresh(self, index: int) -> Tensor:
        """Return the embeddings (p, 3h) of a graph under the configs of its pool."""
        if index not in self.known:
            graph = self.graphs.segmented(self.graphs.files[index])
            pool = self.graphs.pool(index, len(graph.shared.first))
            chunk = chunk_for(graph, self.graphs.config)
            self.known[index] = embed_configs(self.net, graph, pool, chunk_configs=chunk)
        return self.known[index]


@dataclass(frozen=True)
class Survey:
    """What one pass over the train graphs finds.

    Attributes:
        scaler: of the nodes that pruning keeps.
        opcodes: (o,) uint8 those that occur.
        entries: see SegmentHistory.
    """

    scaler: NodeScaler
    opcodes: NDArray[np.uint8]
    entries: list[list[int]]


def survey(files: Sequence[GraphFile], recipe: Recipe) -> Survey:
    """Read each train graph once, one in memory at a time."""
    config, features = recipe.segment_sage, recipe.features
    opcodes, entries = set[int](), list[list[int]]()

    def node_feats() -> Iterator[NDArray[np.float32]]:
        for file in files:
            graph = read_layout(file)
            pruned, nodes = prune_layout_graph(graph, rule=features.prune)
            pool = min(config.table_configs, len(distinct_configs(graph)[0]))
            parts = cut(pruned.edge_index, len(pruned.kept), config.segment_nodes)
            varies = [bool(np.isin(pruned.config_ids, part).any()) for part in parts]
            entries.append([pool if varied else 1 for varied in varies])
            opcodes.update(nodes.opcode.tolist())
            yield nodes.node_feat

    scaler = fit_node_scaler(node_feats(), scaling=features.scaling)
    return Survey(scaler, np.asarray(sorted(opcodes), dtype=np.uint8), entries)


def read_segmented(graph: LayoutGraph, recipe: Recipe, scaler: NodeScaler) -> SegmentedGraph:
    """Return the segments of a graph as the recipe cuts them."""
    config = recipe.segment_sage
    return segmented(
        graph,
        rule=recipe.features.prune,
        scaler=scaler,
        segment_nodes=config.segment_nodes,
        depth=config.blocks,
        padding=recipe.features.padding,
        with_noise=config.noise_weighted_pairs,
    )


def train(job: TrainJob) -> None:
    """Train the layout GNN for whole graphs; write its weights with all it needs to read graphs.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    device = training_device(job.recipe.accelerator, processes=job.n_ranks)
    with torch_prepared(seed=job.seed, threads=job.recipe.threads, device=device):
        _train(job, device)


def _train(job: TrainJob, device: torch.device) -> None:
    recipe, config = job.recipe, job.recipe.segment_sage
    surveyed = survey(job.files, recipe)

    def make(file: GraphFile) -> SegmentedGraph:
        return read_segmented(read_layout(file), recipe, surveyed.scaler).to(device)

    graphs = TrainGraphs(tuple(job.files), LRUCache(make), config, job.seed)
    model = SegmentSage(config)
    model.set_known_opcodes(surveyed.opcodes)
    history = SegmentHistory(surveyed.entries, model.width)
    model.history = history
    task = SegmentTask(graphs, model, history)
    fit(model, task, config.training, job, device)
    model.history = None  # it is of no use but to go on with training
    _train_head(job, graphs, model)
    save_network(model, surveyed.scaler, job.run_dir)
    (job.run_dir / HEAD_FOLDER / CHECKPOINT).unlink(missing_ok=True)


def _train_head(job: TrainJob, graphs: TrainGraphs, model: SegmentSage) -> None:
    """Fine-tune the head on fresh embeddings; the rest of the model stays as it is."""
    config = graphs.config
    if config.head_steps == 0:
        return
    training = config.training.model_copy(update={"steps": config.head_steps})
    head_job = replace(job, run_dir=job.run_dir / HEAD_FOLDER)
    fit(model.head, HeadTask(graphs, model), training, head_job, device_of(model))


@dataclass(frozen=True)
class SegmentRanker:
    """A trained layout GNN for whole graphs."""

    model: SegmentSage
    scaler: NodeScaler
    recipe: Recipe

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of a layout graph; (c,) float32, lower = faster."""
        assert isinstance(graph, LayoutGraph)
        device = device_of(self.model)
        with torch_prepared(threads=self.recipe.threads, device=device):
            parts = read_segmented(graph, self.recipe, self.scaler).to(device)
            chunk = chunk_for(parts, self.recipe.segment_sage)
            return score_all(self.model, parts, chunk_configs=chunk)


def load(_name: str, run_dir: Path, recipe: Recipe) -> SegmentRanker:
    """Load what `train` wrote.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    device = ranking_device(recipe.accelerator)
    with torch_prepared(threads=recipe.threads, device=device):
        model = SegmentSage(recipe.segment_sage)
        scaler = load_network(model, run_dir)
    return SegmentRanker(model.to(device), scaler, recipe)
