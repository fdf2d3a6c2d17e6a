"""Networks on synthetic graphs of any size, to time training steps and ranking."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from data.graphs.packing import Codebooks, PackedConfigs, vector_codes
from data.tree import GraphFile, collection_named
from features.scaling import fit_node_scaler
from models.config.recipe import Recipe
from models.graph_task import faults_of
from models.layout.network import LayoutTask, recorded_steps
from models.registry import TrainJob, model_entry
from models.segments.network import SegmentHistory, SegmentSage, SegmentTask
from models.tile.network import TileTask
from models.training.device import CPU, computing, device_of, torch_prepared
from models.training.loop import TrainingTask, fit

UNPRUNED = Recipe.from_table({"features": {"prune": "none"}}, source="synthetic graphs")
TILES = collection_named("tile:xla")
# Distinct layout vectors and stored columns of a layout graph.
N_VECTORS, N_COLUMNS = 40, 32
# The first steps fill caches, compile kernels and record CUDA graphs.
WARM_UP_STEPS, TIMED_STEPS = 3, 3


@dataclass(frozen=True)
class GraphSize:
    """The size of a layout graph after pruning, or of a tile kernel.

    Attributes:
        nodes: Number of nodes.
        edges: Number of edges. They are drawn at random, and edges that occur twice are dropped.
        configurable: Number of configurable nodes, 0 for a tile kernel. The work of a network for
            each config depends on it.
        configs: Number of configs. All of them differ, and so do their runtimes.
    """

    nodes: int
    edges: int
    configurable: int
    configs: int


@dataclass(frozen=True)
class SyntheticWorkload:
    """A network with the graphs or kernels of one training step, on the CPU.

    Attributes:
        kind: "layout" or "tile".
        config: Table of the network in its recipe.
        network: The network, untrained.
        graphs: Inputs of the network. All of them are the same graph.
    """

    kind: str
    config: Any
    network: Any
    graphs: tuple[Any, ...]


def make_workload(
    recipe: Recipe, model: str, size: GraphSize, *, n_graphs: int | None = None
) -> SyntheticWorkload:
    """Build a network of a recipe, and the graphs of one of its training steps.

    Args:
        recipe: Recipe with the network.
        model: Name of the network.
        size: Size of each graph or kernel.
        n_graphs: Number of graphs. None takes the number of the recipe.
    """
    entry, config = model_entry(recipe, model), getattr(recipe, model)
    graph = _layout_graph(size) if entry.kind == "layout" else _tile_graph(size)
    scaler = fit_node_scaler([graph.node_feat], scaling=UNPRUNED.features.scaling)
    network_class, threads = entry.network_class, torch.get_num_threads()
    with torch_prepared(threads=threads, device=CPU), faults_of(network_class):
        network = network_class(config)
        inputs = network.reader(UNPRUNED.features, scaler)(graph)
    per_step = config.graphs_per_step if entry.kind == "layout" else config.kernels_per_step
    return SyntheticWorkload(entry.kind, config, network, (inputs,) * (n_graphs or per_step))


def _layout_graph(size: GraphSize) -> LayoutGraph:
    program, rng = _program(size, "layout:xla:random")
    vectors = np.unique(vector_codes(rng.integers(-1, 6, (N_VECTORS, 18), dtype=np.int8)))
    columns = min(N_COLUMNS, size.configurable)
    configs = rng.integers(0, len(vectors), (size.configs, columns), dtype=np.uint8)
    # No two configs are the same.
    for column in range(min(columns, 4)):
        configs[:, column] = np.arange(size.configs) // len(vectors) ** column % len(vectors)
    codebooks = Codebooks(
        codes=vectors,
        column_of=np.arange(size.configurable) % columns,
        vectors=np.tile(np.arange(len(vectors)), (columns, 1)),
        sizes=np.full(columns, len(vectors)),
    )
    return LayoutGraph(
        **program,
        configs=PackedConfigs(codebooks, configs),
        node_config_ids=np.sort(rng.permutation(size.nodes)[: size.configurable]),
        node_splits=np.zeros((1, 0), np.int64),
    )


def _tile_graph(size: GraphSize) -> TileGraph:
    program, rng = _program(size, TILES.name)
    config_feat = rng.integers(1, 64, (size.configs, N_TILE_VALUES)).astype(np.float32)
    normalizers = np.ones(size.configs, np.int64)
    return TileGraph(**program, config_feat=config_feat, runtime_normalizers=normalizers)


def _program(size: GraphSize, collection: str) -> tuple[dict[str, Any], np.random.Generator]:
    rng = np.random.default_rng(0)
    consumer = rng.integers(1, max(2, size.nodes), size.edges)
    edges = np.unique(np.stack([consumer, rng.integers(0, consumer)], axis=1), axis=0)
    program = {
        "file": GraphFile(collection_named(collection), "train", "synthetic", Path("synthetic")),
        "node_feat": rng.integers(0, 3, (size.nodes, N_NODE_FEATURES)).astype(np.float32),
        "node_opcode": rng.integers(1, 100, size.nodes).astype(np.uint8),
        "edge_index": edges,
        # Runtimes are 1, 2, … ns.
        "runtime_ns": np.arange(1, size.configs + 1),
    }
    return program, rng


def train_steps(
    workload: SyntheticWorkload,
    device: torch.device,
    n_steps: int,
    after: Callable[[int], None],
    *,
    recorded: bool = True,
) -> None:
    """Train as `train` does, without lines in a log.

    Args:
        workload: Network and graphs.
        device: Device of the training.
        n_steps: Number of steps.
        after: Called with the number of steps so far, after each step.
        recorded: Whether steps of a layout network are CUDA graphs, as in `train`.
    """
    rare = {"steps": n_steps, "log_every": n_steps, "checkpoint_every": n_steps, "swa_start": 1}
    training = workload.config.training.model_copy(update=rare)
    graphs = [inputs.to(device) for inputs in workload.graphs]
    files = tuple(GraphFile(TILES, "train", str(i), Path(str(i))) for i in range(len(graphs)))
    inputs: Any = dict(zip(files, graphs, strict=True)).__getitem__
    config = workload.config.model_copy(update={"training": training})
    arguments = files, inputs, config, 0
    if isinstance(workload.network, SegmentSage):
        history = _full_history(workload)
        task: TrainingTask = SegmentTask(*arguments, workload.network, history)
    elif workload.kind == "tile":
        task = TileTask(*arguments, HeldOut(files))
    else:
        recorder = recorded_steps(workload.network, device) if recorded else None
        task = LayoutTask(*arguments, HeldOut(files), recorder)
    with TemporaryDirectory() as folder:
        job = TrainJob("synthetic", UNPRUNED, files, 0, Path(folder))
        with watched_by(lambda _, done, __: after(done)):
            # Without `prefetch`: all graphs are in memory.
            step_loss: Any = SimpleNamespace(step_loss=task.step_loss)
            fit(workload.network, step_loss, training, job, device)


def _full_history(workload: SyntheticWorkload) -> SegmentHistory:
    """Set the history of a network as in the middle of a training, with all segments known."""
    n_pooled = min(workload.config.table_configs, len(workload.graphs[0].first))
    entries = [[n_pooled if s.varies else 1 for s in graph.segments] for graph in workload.graphs]
    history = SegmentHistory(entries, workload.network.width)
    history.known.fill_(True)
    workload.network.history = history
    return history


def step_seconds(workload: SyntheticWorkload, device: torch.device) -> float:
    """Return the median seconds of a training step: wall time on a GPU, CPU time on a CPU.

    Args:
        workload: Network and graphs.
        device: Device of the training.
    """
    ends: list[float] = []

    def step_ended(_: int) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter() if device.type == "cuda" else time.process_time())

    # The last step writes a checkpoint.
    train_steps(workload, device, WARM_UP_STEPS + TIMED_STEPS + 1, step_ended)
    return median(after - before for before, after in pairwise(ends[-TIMED_STEPS - 2 : -1]))


def on_device(workload: SyntheticWorkload, device: torch.device) -> SyntheticWorkload:
    """Move network and graphs to a device, ready to rank.

    Args:
        workload: Network and graphs.
        device: The device.
    """
    network = workload.network.to(device).eval()
    return replace(
        workload, network=network, graphs=tuple(graph.to(device) for graph in workload.graphs)
    )


def rank_configs(workload: SyntheticWorkload) -> None:
    """Rank all configs of the first graph, as `predict` does with a graph on its device.

    Args:
        workload: Network and graphs, from `on_device`.
    """
    device = device_of(workload.network)
    with computing(device, workload.config.training.precision):
        workload.network.score_all(workload.graphs[0])
