"""The layout GNN beside a plain version of the same equations, and beside the winning model."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import render
from benchmarks.speed.measuring import in_turn, peak_mib
from benchmarks.speed.plain_layout_model import plain_copy, plain_gradients
from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.synthetic.plans import GraphSize
from data.synthetic.write import write_sized
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.config.recipe import Recipe, load_recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs
from models.layout.network import LayoutNetwork
from models.layout.tgraph import Tgraph
from models.training.device import prepare_torch
from models.training.losses import LOSSES

# Pruning keeps about this many nodes for each configurable one; the real graphs are alike.
KEPT_PER_CONFIGURABLE = 2.76
NODES_PER_CONFIGURABLE = 20
ROUNDS = 2
OURS, PLAIN, WINNING = "cross_config_sage", "plain PyG", "tgraph"
HEADER = (
    *("n, c, our width", "network", "forward s", "times ours"),
    *("forward+backward s", "times ours", "peak MiB", "times ours"),
    *("scores differ by", "gradients by"),
)


@dataclass(frozen=True)
class Setting:
    """The nodes that pruning keeps of a graph, the configs scored at once, our channels."""

    n_nodes: int
    n_configs: int = 64
    hidden: int = 64


SETTINGS = (Setting(500), Setting(2_000), Setting(5_000), Setting(2_000, hidden=256))


@dataclass(frozen=True)
class Case:
    """Networks by name, each with what it reads of one graph; the first configs are scored."""

    networks: Mapping[str, tuple[LayoutNetwork, LayoutInputs]]
    n_configs: int

    @torch.inference_mode()
    def forward(self, name: str) -> Tensor:
        """Return the scores as they are ranked by, (c,)."""
        network, inputs = self.networks[name]
        scores: Tensor = network.eval()(inputs, np.arange(self.n_configs))
        return scores

    def step(self, name: str) -> None:
        """Take the gradients of the network's loss."""
        network, inputs = self.networks[name]
        network.train().zero_grad()
        sample = np.arange(self.n_configs)
        LOSSES[network.config.loss](network(inputs, sample), inputs.runtimes(sample)).backward()


def make_graph(setting: Setting) -> LayoutGraph:
    """Make a graph that pruning leaves about `n_nodes` nodes of."""
    k = max(4, round(setting.n_nodes / KEPT_PER_CONFIGURABLE))
    size = GraphSize(NODES_PER_CONFIGURABLE * k, k, 2 * setting.n_configs)
    with tempfile.TemporaryDirectory() as folder:
        return read_layout(write_sized(Path(folder), size))


def make_case(setting: Setting) -> Case:
    """Make a graph and all networks, the plain one with the weights of ours, for one thread."""
    prepare_torch(seed=0, threads=1)
    graph, reference = make_graph(setting), load_recipe("reference")
    ours = CrossConfigSage(CrossConfigSageConfig(hidden=setting.hidden))

    def reading(network: LayoutNetwork, recipe: Recipe) -> tuple[LayoutNetwork, LayoutInputs]:
        scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
        return network, network.reader(recipe.features, scaler)(graph)

    networks = {
        OURS: reading(ours, Recipe()),
        PLAIN: reading(plain_copy(ours), Recipe()),
        WINNING: reading(Tgraph(reference.tgraph), reference),
    }
    return Case(networks, setting.n_configs)


def differences(case: Case) -> tuple[float, float]:
    """Compare ours with plain after a step of both.

    Returns:
        The largest difference of two scores, and |ours - plain| / |plain| of all gradients as one
        vector.
    """
    ours, plain = case.networks[OURS][0], case.networks[PLAIN][0]
    assert isinstance(ours, CrossConfigSage)
    found = plain_gradients(ours)
    expected = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    apart = torch.cat([(found[name] - grad).flatten() for name, grad in expected.items()])
    size = torch.cat([grad.flatten() for grad in expected.values()]).norm()
    scores = (case.forward(OURS) - case.forward(PLAIN)).abs().max()
    return float(scores), float(apart.norm() / size)


def step_mib(name: str, setting: Setting) -> float:
    """Return what a forward and backward pass adds to the peak memory of a fresh process."""
    imported = "from benchmarks.speed.layout_model import Setting, make_case"
    return peak_mib(f"{imported}\ncase = make_case({setting!r})", f"case.step({name!r})")


def measure(setting: Setting) -> list[list[str]]:
    """Measure one case; return a line of cells for each network."""
    case = make_case(setting)
    costs: list[tuple[dict[str, float], str]] = []  # by network, and how they are written
    for run in (case.forward, case.step):
        work = {name: partial(run, name) for name in case.networks}
        seconds = in_turn(work, ROUNDS, warm_up=True)
        costs.append(({name: min(taken) for name, taken in seconds.items()}, ".2f"))
    costs.append(({name: step_mib(name, setting) for name in case.networks}, ",.0f"))
    size = f"{len(case.networks[OURS][1].opcode):,}, {setting.n_configs}, {setting.hidden}"
    rows = []
    for name in case.networks:
        apart = [f"{value:.0e}" for value in differences(case)] if name == PLAIN else ["", ""]
        cells = [(f"{of[name]:{form}}", f"{of[name] / of[OURS]:.2f}") for of, form in costs]
        rows.append([size, name, *(text for pair in cells for text in pair), *apart])
    return rows


def report(settings: Sequence[Setting] = SETTINGS) -> str:
    rows = [row for setting in settings for row in measure(setting)]
    return render("layout_model", rounds=ROUNDS, header=HEADER, rows=rows)
