"""Networks on synthetic graphs of one size, to time training steps and ranking."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from common.progress import watched_by
from data.families import HeldOut
from data.synthetic.graphs import (
    GraphSize,
    draw_edges,
    make_layout_graph,
    make_tile_graph,
    sized_graph,
)
from data.tree import GraphFile, collection_named
from features.scaling import fit_node_scaler
from models.config.recipe import Recipe
from models.graph_task import faults_of
from models.layout.network import LayoutTask, recorded_steps
from models.registry import TrainJob, model_entry
from models.segments.training import SegmentHistory, StoredTask
from models.tile.network import TileTask
from models.training.device import CPU, computing, device_of, torch_prepared
from models.training.loop import TrainingTask, fit

UNPRUNED = Recipe.from_table({"features": {"prune": "none"}}, source="synthetic graphs")
TILES = collection_named("tile:xla")
# A generated program has at most a quarter of configurable nodes.
CONFIGURABLE_SHARE = 0.24


@dataclass(frozen=True)
class SyntheticWorkload:
    """A network with the graphs or kernels of one training step, on the CPU.

    Attributes:
        kind: "layout" or "tile".
        graphs: Inputs of the network. All of them are the same graph.
    """

    kind: str
    config: Any
    network: Any
    graphs: tuple[Any, ...]


def make_workload(
    recipe: Recipe, model: str, size: GraphSize, *, has_real_distances: bool = False
) -> SyntheticWorkload:
    """Build a network of a recipe, and the unpruned graphs of one of its training steps.

    With real distances, a layout graph has the edges of `draw_edges`.
    """
    entry, config = model_entry(recipe, model), getattr(recipe, model)
    is_layout = entry.kind == "layout"
    make: Any = make_layout_graph if is_layout else make_tile_graph
    graph = make(sized_graph(size) if is_layout else sized_graph(size, TILES))
    if has_real_distances:
        edges = draw_edges(size.n_nodes, np.random.default_rng(0))
        graph = replace(graph, edge_index=edges)
    scaler = fit_node_scaler([graph.node_feat], scaling=UNPRUNED.features.scaling)
    network_class, threads = entry.network_class, torch.get_num_threads()
    with torch_prepared(threads=threads, device=CPU), faults_of(network_class):
        network = network_class(config)
        inputs = network.reader(UNPRUNED.features, scaler)(graph)
    per_step = config.graphs_per_step if is_layout else config.kernels_per_step
    return SyntheticWorkload(entry.kind, config, network, (inputs,) * per_step)


def train_steps(
    workload: SyntheticWorkload,
    device: torch.device,
    n_steps: int,
    after: Callable[[int], None],
    *,
    recorded: bool = True,
) -> None:
    """Train as `train` does, without lines in a log."""
    rare = {"steps": n_steps, "log_every": n_steps, "checkpoint_every": n_steps, "swa_start": 1}
    training = workload.config.training.model_copy(update=rare)
    graphs = [inputs.to(device) for inputs in workload.graphs]
    files = tuple(GraphFile(TILES, "train", str(i), Path(str(i))) for i in range(len(graphs)))
    inputs: Any = dict(zip(files, graphs, strict=True)).__getitem__
    config = workload.config.model_copy(update={"training": training})
    arguments = files, inputs, config, 0
    if workload.kind == "tile":
        task: TrainingTask = TileTask(*arguments, HeldOut(files))
    elif getattr(config, "live_segments", 0):
        sizes = [(len(g.segments), min(config.table_configs, len(g.first))) for g in graphs]
        workload.network.history = SegmentHistory(sizes, workload.network.width)
        task = StoredTask(*arguments, workload.network, workload.network.history)
    else:
        recorder = recorded_steps(workload.network, device) if recorded else None
        task = LayoutTask(*arguments, HeldOut(files), recorder)
    with TemporaryDirectory() as folder:
        job = TrainJob("synthetic", UNPRUNED, files, 0, Path(folder))
        with watched_by(lambda _, done, __: after(done)):
            # Without `prefetch`: all graphs are in memory.
            recorder = getattr(task, "recorder", None)
            unread: Any = SimpleNamespace(step_loss=task.step_loss, recorder=recorder)
            fit(workload.network, unread, training, job, device)


def on_device(workload: SyntheticWorkload, device: torch.device) -> SyntheticWorkload:
    """Move network and graphs to a device, ready to rank."""
    network = workload.network.to(device).eval()
    graphs = tuple(graph.to(device) for graph in workload.graphs)
    return replace(workload, network=network, graphs=graphs)


def rank_configs(workload: SyntheticWorkload) -> None:
    """Rank all configs of the first graph, as `predict` does with a graph on its device."""
    device = device_of(workload.network)
    with computing(device, workload.config.training.precision):
        workload.network.score_all(workload.graphs[0])
