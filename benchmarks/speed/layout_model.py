"""The layout GNN beside a plain version of the same equations, and beside the winning model."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks import render
from benchmarks.speed.measuring import in_turn, peak_mib
from benchmarks.speed.plain_layout_model import PlainLayoutModel
from data.read import read_layout
from data.synthetic.write import GraphSize, write_sized
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.config.recipe import Recipe, load_recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.network import LayoutNetwork
from models.layout.tgraph import Tgraph
from models.training.device import prepare_torch
from models.training.losses import LOSSES

# Pruning keeps about this many nodes for each configurable one; the real graphs are alike.
KEPT_PER_CONFIGURABLE = 2.76
NODES_PER_CONFIGURABLE = 20
ROUNDS = 2
OURS = "cross_config_sage"
NETWORKS = (OURS, "plain PyG", "tgraph")
HEADER = (
    *("n, c, our width", "network", "forward s", "times ours"),
    *("forward+backward s", "times ours", "peak MiB", "times ours"),
)


class Setting(NamedTuple):
    """The nodes that pruning keeps of a graph, the configs scored at once, our channels."""

    n_nodes: int
    n_configs: int = 64
    hidden: int = 64


SETTINGS = (Setting(500), Setting(2_000), Setting(5_000), Setting(2_000, hidden=256))


class Work(NamedTuple):
    """What a network can do with a graph of so many kept nodes: its scores, and a step."""

    n_nodes: int
    forward: Callable[[], object]
    step: Callable[[], None]


def make_work(name: str, setting: Setting) -> Work:
    """Make a graph and one of NETWORKS, for one thread; the first configs are scored."""
    prepare_torch(seed=0, threads=1)
    k = max(4, round(setting.n_nodes / KEPT_PER_CONFIGURABLE))
    size = GraphSize(NODES_PER_CONFIGURABLE * k, k, 2 * setting.n_configs)
    with tempfile.TemporaryDirectory() as folder:
        graph = read_layout(write_sized(Path(folder), size))
    config = CrossConfigSageConfig(hidden=setting.hidden)
    if name == "tgraph":
        recipe = load_recipe("reference")
        network: LayoutNetwork = Tgraph(recipe.tgraph)
    else:
        recipe = Recipe()
        network = (CrossConfigSage if name == OURS else PlainLayoutModel)(config)
    scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
    inputs, sample = network.reader(recipe.features, scaler)(graph), np.arange(setting.n_configs)

    @torch.inference_mode()
    def forward() -> object:
        return network.eval()(inputs, sample)

    def step() -> None:
        network.train().zero_grad()
        LOSSES[network.config.loss](network(inputs, sample), inputs.runtimes(sample)).backward()

    return Work(len(inputs.opcode), forward, step)


def step_mib(name: str, setting: Setting) -> float:
    """Return what a forward and backward pass adds to the peak memory of a fresh process."""
    imported = "from benchmarks.speed.layout_model import Setting, make_work"
    return peak_mib(f"{imported}\nwork = make_work({name!r}, {setting!r})", "work.step()")


def measure(setting: Setting) -> list[list[str]]:
    """Measure one case; return a line of cells for each network."""
    works = {name: make_work(name, setting) for name in NETWORKS}
    costs = []  # by network, and how they are written
    for part in ("forward", "step"):
        runs = {name: getattr(work, part) for name, work in works.items()}
        costs.append(({name: min(s) for name, s in in_turn(runs, ROUNDS).items()}, ".2f"))
    costs.append(({name: step_mib(name, setting) for name in NETWORKS}, ",.0f"))
    rows = []
    for name, work in works.items():
        cells = [(f"{of[name]:{form}}", f"{of[name] / of[OURS]:.2f}") for of, form in costs]
        size = f"{work.n_nodes:,}, {setting.n_configs}, {setting.hidden}"
        rows.append([size, name, *(text for pair in cells for text in pair)])
    return rows


def report(settings: Sequence[Setting] = SETTINGS) -> str:
    rows = [row for setting in settings for row in measure(setting)]
    return render("layout_model", rounds=ROUNDS, header=HEADER, rows=rows)
