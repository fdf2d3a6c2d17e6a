"""Train and load the layout GNN for whole graphs, by Graph Segment Training.

Two phases, each with its own checkpoint: all of the network on one live segment per step, the
others remembered; then the head alone on fresh embeddings of all segments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.graphs.distinct import distinct_configs
from data.read import read_layout
from features.pruning.nodes import PrunedNodes, prune_layout_graph
from features.scaling import NodeScaler
from models.config.recipe import Recipe
from models.graph_task import DrawnGraphs, NetworkRanker, Read, learn_nodes, load_ranker
from models.layout.task import ranking_loss
from models.segments.cut import Segment, SegmentedGraph, cut, segmented
from models.segments.network import SegmentHistory, SegmentSage, embed_configs, segment_weights
from models.training.dataset import LRUCache
from models.training.device import allows_tf32, device_of, torch_prepared, training_device
from models.training.jobs import TrainJob
from models.training.loop import CHECKPOINT, StepLoss, fit
from models.training.samplers import SAMPLERS
from models.training.weights import save_network

HEAD_FOLDER = "head"


@dataclass(frozen=True)
class PooledGraphs(DrawnGraphs[SegmentedGraph]):
    """The train graphs, and of each a fixed pool of configs, drawn by `seed`.

    Only the pool's configs are learned from: what is remembered of segments grows with it.
    """

    seed: int

    def pool(self, index: int, n_distinct: int) -> NDArray[np.int64]:
        """Return the distinct configs of the graph at `index` that are learned from; (p,)."""
        rng = np.random.default_rng([self.seed, 1, index])
        return rng.permutation(n_distinct)[: self.config.table_configs]

    def sample(
        self, runtime_ns: NDArray[np.float64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw a step's configs from a pool of runtimes (p,), as positions in it; (c,)."""
        return SAMPLERS[self.config.sampler](runtime_ns, self.config.configs_per_step, rng)


@dataclass(frozen=True)
class SegmentTask:
    """Ranks a sample of a graph's pool by one live segment, and by what is known of the others.

    The live segment and the dropped ones are the same for all configs of a step, so that these
    differ by their layouts alone. Segments in which configs do not differ are never live or
    dropped. An embedding that is needed and was never computed is computed then, without gradients.
    """

    graphs: PooledGraphs
    net: SegmentSage
    history: SegmentHistory

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `graphs_per_step` random graphs."""
        chosen = self.graphs.chosen(rng)
        losses = [self._graph_loss(model, index, rng) for index in chosen]
        return StepLoss(torch.stack(losses).mean(), self.graphs.named(chosen))

    def prefetch(self, rng: np.random.Generator) -> None:
        """Begin to read the graphs of the step that `rng` draws."""
        self.graphs.prefetch(rng)

    def _graph_loss(self, model: nn.Module, index: int, rng: np.random.Generator) -> Tensor:
        graph = self.graphs.inputs(self.graphs.files[index])
        pool = self.graphs.pool(index, len(graph.shared.first))
        runtime_ns = graph.shared.runtime_ns[pool]
        sample = self.graphs.sample(runtime_ns, rng)
        positions = torch.from_numpy(sample)
        choices = graph.shared.choices(pool[sample])
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
        runtimes = graph.shared.runtimes(pool[sample])
        return ranking_loss(self.graphs.config, scores, runtimes, graph.shared.noise)

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
        return self.history.values[rows]


@dataclass(frozen=True)
class HeadTask:
    """Ranks a sample of a graph's pool by fresh embeddings of all its segments.

    The rest of the network no longer changes, so a graph is embedded once, segment by segment,
    when it is first drawn; 12 h bytes per config of its pool are kept.
    """

    graphs: PooledGraphs
    net: SegmentSage
    known: dict[int, Tensor] = field(default_factory=dict)

    def step_loss(self, model: nn.Module, rng: np.random.Generator) -> StepLoss:
        """Mean loss over `graphs_per_step` random graphs; `model` is the head."""
        chosen = self.graphs.chosen(rng)
        losses = []
        for index in chosen:
            graph = self.graphs.inputs(self.graphs.files[index])
            pool = self.graphs.pool(index, len(graph.shared.first))
            runtime_ns = graph.shared.runtime_ns[pool]
            sample = self.graphs.sample(runtime_ns, rng)
            if index not in self.known:
                self.known[index] = embed_configs(self.net, graph, pool)  # (p, 3h)
            fresh = self.known[index]
            scores = model(fresh[torch.from_numpy(sample).to(fresh.device)])
            runtimes, noise = graph.shared.runtimes(pool[sample]), graph.shared.noise
            losses.append(ranking_loss(self.graphs.config, scores, runtimes, noise))
        return StepLoss(torch.stack(losses).mean(), self.graphs.named(chosen))


def train(job: TrainJob) -> None:
    """Train the layout GNN for whole graphs; write its weights with all it needs to read graphs.

    Raises:
        PipelineError: a damaged file, a loss that is not finite, no space.
    """
    recipe: Recipe = job.recipe
    config = recipe.segment_sage
    device = training_device(recipe.accelerator)
    tf32 = allows_tf32(config.training)
    with torch_prepared(seed=job.seed, threads=recipe.n_threads, device=device, tf32=tf32):
        entries: list[list[int]] = []
        scaler, opcodes = learn_nodes(_survey(job, entries), scaling=recipe.features.scaling)
        model = SegmentSage(config)
        model.set_known_opcodes(opcodes)
        read = _reader(recipe, model, scaler)
        inputs = LRUCache(lambda file: read(read_layout(file)).to(device))
        graphs = PooledGraphs(tuple(job.files), inputs, config, job.seed)
        model.history = SegmentHistory(entries, model.width)
        fit(model, SegmentTask(graphs, model, model.history), config.training, job, device)
        model.history = None  # it is of no use but to go on with training
        if config.head_steps:  # the rest of the model stays as it is
            training = config.training.model_copy(update={"steps": config.head_steps})
            head_job = replace(job, run_dir=job.run_dir / HEAD_FOLDER)
            fit(model.head, HeadTask(graphs, model), training, head_job, device)
        save_network(model, scaler, job.run_dir)
    (job.run_dir / HEAD_FOLDER / CHECKPOINT).unlink(missing_ok=True)


def _survey(job: TrainJob, entries: list[list[int]]) -> Iterator[PrunedNodes]:
    config = job.recipe.segment_sage
    for file in job.files:
        graph = read_layout(file)
        pruned, nodes = prune_layout_graph(graph, rule=job.recipe.features.prune)
        pool = min(config.table_configs, len(distinct_configs(graph)[0]))
        parts = cut(len(pruned.kept), config.segment_nodes)
        varies = [bool(np.isin(pruned.config_ids, part).any()) for part in parts]
        entries.append([pool if varied else 1 for varied in varies])
        yield nodes


def _reader(recipe: Recipe, _: nn.Module, scaler: NodeScaler) -> Read:
    config = recipe.segment_sage
    return partial(
        segmented,
        rule=recipe.features.prune,
        scaler=scaler,
        segment_nodes=config.segment_nodes,
        depth=config.blocks,
        padding=recipe.features.padding,
        with_noise=config.noise_weighted_pairs,
    )


def load(_name: str, run_dir: Path, recipe: Recipe) -> NetworkRanker:
    """Load what `train` wrote.

    Raises:
        PipelineError: the weights are missing, damaged or of another model.
    """
    make = partial(SegmentSage, recipe.segment_sage)
    return load_ranker(make, partial(_reader, recipe), run_dir, recipe)
