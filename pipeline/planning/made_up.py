"""Networks on made-up graphs of any size, for counting and timing what they do."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from common.progress import watched_by
from data.families import HeldOut
from data.graphs.graph import N_NODE_FEATURES, N_TILE_VALUES, LayoutGraph, TileGraph
from data.graphs.packing import Alphabets, PackedConfigs, vector_codes
from data.tree import GraphFile, collection_named
from features.scaling import fit_node_scaler
from models.config.recipe import Recipe
from models.graph_task import faults_of
from models.layout.network import LayoutTask
from models.registry import ModelEntry, TrainJob, model_entry
from models.segments.network import SegmentHistory, SegmentSage, SegmentTask
from models.tile.network import TileTask
from models.training.device import CPU, computing, device_of, torch_prepared
from models.training.loop import TrainingTask, fit
from pipeline.planning.cards import GIB, Card
from pipeline.planning.counts import FAKE_GPU, Counts, counted

UNPRUNED = Recipe.from_table({"features": {"prune": "none"}}, source="made-up graphs")
N_VECTORS, N_COLUMNS = 40, 32  # of a layout graph: distinct layout vectors, stored columns
TIMED = 8  # steps, of which the first ones fill caches


@dataclass(frozen=True)
class Size:
    """A graph's size after pruning: m nodes, e edges, k of the nodes configurable, c configs."""

    nodes: int
    edges: int
    configurable: int
    configs: int

    def times(self, factor: float) -> "Size":
        counts = self.nodes, self.edges, self.configurable
        nodes, edges, configurable = (max(1, round(factor * count)) for count in counts)
        return Size(nodes, edges, configurable, self.configs)


@dataclass(frozen=True)
class Case:
    """A network with a step's graphs, or kernels, each of n_nodes nodes, on the CPU."""

    kind: str
    config: Any
    network: Any
    graphs: tuple[Any, ...]
    n_nodes: int

    def tensor_bytes(self, n_configs: int) -> int:
        """Return the bytes of one float32 (nodes, configs, channels) tensor of one graph."""
        return 4 * self.n_nodes * n_configs * self.config.hidden


def make_case(recipe: Recipe, name: str, size: Size) -> Case:
    """Make the network `name` of a recipe, and what it reads: a layout graph, or a step's kernels.

    All configs differ, and so do all runtimes.
    """
    return _case(model_entry(recipe, name), getattr(recipe, name), size)


def _case(entry: ModelEntry, config: Any, size: Size) -> Case:
    make, rng = layout_graph if entry.kind == "layout" else tile_graph, np.random.default_rng(0)
    graph: LayoutGraph | TileGraph = make(size, rng)
    scaler = fit_node_scaler([graph.node_feat], scaling=UNPRUNED.features.scaling)
    network_class, threads = entry.network_class, torch.get_num_threads()
    with torch_prepared(threads=threads, device=CPU), faults_of(network_class):
        network = network_class(config)
        read = network.reader(UNPRUNED.features, scaler)
        inputs = read(graph)
    n_graphs = config.graphs_per_step if entry.kind == "layout" else config.kernels_per_step
    return Case(entry.kind, config, network, (inputs,) * n_graphs, size.nodes)


def layout_graph(size: Size, rng: np.random.Generator) -> LayoutGraph:
    """Make a layout graph of a size, in memory; runtimes are 1, 2, … ns."""
    vectors = np.unique(vector_codes(rng.integers(-1, 6, (N_VECTORS, 18), dtype=np.int8)))
    columns = min(N_COLUMNS, size.configurable)
    configs = rng.integers(0, len(vectors), (size.configs, columns), dtype=np.uint8)
    for column in range(min(columns, 4)):  # no two configs are the same
        configs[:, column] = np.arange(size.configs) // len(vectors) ** column % len(vectors)
    alphabets = Alphabets(
        codes=vectors,
        column_of=np.arange(size.configurable) % columns,
        vectors=np.tile(np.arange(len(vectors)), (columns, 1)),
        sizes=np.full(columns, len(vectors)),
    )
    return LayoutGraph(
        **_program(size, rng, "layout:xla:random"),
        configs=PackedConfigs(alphabets, configs),
        node_config_ids=np.sort(rng.permutation(size.nodes)[: size.configurable]),
        node_splits=np.zeros((1, 0), np.int64),
    )


def tile_graph(size: Size, rng: np.random.Generator) -> TileGraph:
    """Make a kernel of a size, in memory; runtimes are 1, 2, … ns."""
    return TileGraph(
        **_program(size, rng, "tile:xla"),
        config_feat=rng.integers(1, 64, (size.configs, N_TILE_VALUES)).astype(np.float32),
        runtime_normalizers=np.ones(size.configs, np.int64),
    )


def _program(size: Size, rng: np.random.Generator, collection: str) -> dict[str, Any]:
    consumer = rng.integers(1, max(2, size.nodes), size.edges)
    edges = np.unique(np.stack([consumer, rng.integers(0, consumer)], axis=1), axis=0)
    node_feat = rng.integers(0, 3, (size.nodes, N_NODE_FEATURES)).astype(np.float32)
    return {
        "file": GraphFile(collection_named(collection), "train", "made-up", Path("made-up.npz")),
        "node_feat": node_feat,
        "node_opcode": rng.integers(1, 100, size.nodes).astype(np.uint8),
        "edge_index": edges,
        "runtime_ns": np.arange(1, size.configs + 1),
    }


def steps(case: Case, device: torch.device, n_steps: int, after: Callable[[int], None]) -> None:
    """Train for some steps, as `train` does, with no line logged; `after(n)` is told of each."""
    rare = {"steps": n_steps, "log_every": n_steps, "checkpoint_every": n_steps, "swa_start": 1}
    training = case.config.training.model_copy(update=rare)
    graphs = [inputs.to(device) for inputs in case.graphs]
    place = collection_named("tile:xla")
    files = tuple(GraphFile(place, "train", str(i), Path(str(i))) for i in range(len(graphs)))
    inputs: Any = dict(zip(files, graphs, strict=True)).__getitem__
    config = case.config.model_copy(update={"training": training})
    given = files, inputs, config
    if isinstance(case.network, SegmentSage):
        task: TrainingTask = SegmentTask(*given, 0, case.network, _filled_history(case))
    else:
        task = (LayoutTask if case.kind == "layout" else TileTask)(*given, HeldOut(files))
    with TemporaryDirectory() as folder:
        job = TrainJob("made-up", UNPRUNED, files, 0, Path(folder))
        with watched_by(lambda _, done, __: after(done)):
            # What is there already is not to be read beforehand, by another thread.
            task_alone: Any = SimpleNamespace(step_loss=task.step_loss)
            fit(case.network, task_alone, training, job, device)


def _filled_history(case: Case) -> SegmentHistory:
    """Give the network a history as in the middle of a training, when every segment is known."""
    n_pooled = min(case.config.table_configs, len(case.graphs[0].first))
    entries = [[n_pooled if s.varies else 1 for s in graph.segments] for graph in case.graphs]
    history = SegmentHistory(entries, case.network.width)
    history.known.fill_(True)
    case.network.history = history
    return history


def step_seconds(case: Case, device: torch.device) -> float:
    """Return the median seconds of a training step; on a CPU those of the processor."""
    ends: list[float] = []

    def ended(_: int) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter() if device.type == "cuda" else time.process_time())

    steps(case, device, TIMED, ended)
    return median(after - before for before, after in pairwise(ends[2:-1]))


def on_device(case: Case, device: torch.device) -> Case:
    network = case.network.to(device).eval()
    return replace(case, network=network, graphs=tuple(g.to(device) for g in case.graphs))


def rank(case: Case) -> None:
    """Rank all configs of the first graph, as `predict` does once it is on the device."""
    device = device_of(case.network)
    with computing(device, case.config.training.precision):
        case.network.score_all(case.graphs[0])


class _Enough(Exception):  # noqa: N818 -- it is no error
    pass


def count_step(case: Case, card: Card | None = None) -> Counts:
    """Return what a training step takes when another one has filled the optimiser before."""
    seen: list[Counts] = []

    def after(_: int) -> None:
        seen.append(copy.deepcopy(counts))
        if len(seen) == 2:
            raise _Enough

    with _counted(card) as counts, suppress(_Enough):
        steps(case, FAKE_GPU, 3, after)
    return seen[1].since(seen[0])


def count_ranking(case: Case, card: Card | None = None) -> Counts:
    """Return what ranking all configs of a graph takes that is on the device already."""
    with _counted(card) as counts:
        moved = on_device(case, FAKE_GPU)
        before = copy.deepcopy(counts)
        rank(moved)
        return counts.since(before)


@cache
def counted_step(entry: ModelEntry, config: Any, size: Size, card: Card | None) -> Counts:
    """Return what `count_step` finds of a network on a graph, or kernels, of a size."""
    return count_step(_case(entry, config, size), card)


@cache
def counted_ranking(entry: ModelEntry, config: Any, size: Size, card: Card | None) -> Counts:
    """Return what `count_ranking` finds of a network on a graph, or kernels, of a size."""
    return count_ranking(_case(entry, config, size), card)


@contextmanager
def _counted(card: Card | None) -> Iterator[Counts]:
    facts = (card.capability, round(card.memory_gib * GIB)) if card else ()
    with torch_prepared(threads=torch.get_num_threads(), device=CPU), counted(*facts) as counts:
        yield counts
