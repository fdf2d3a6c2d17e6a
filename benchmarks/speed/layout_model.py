"""The layout GNN beside a plain version of the same equations, and beside the winning model."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import section
from benchmarks.speed.measuring import in_turn, peak_mib
from benchmarks.speed.plain_layout_model import plain_copy, plain_edges, plain_gradients
from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.synthetic.plans import GraphSize
from data.synthetic.write import write_sized
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.config.own_models import imported
from models.config.recipe import load_recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.registry import NETWORKS
from models.training.device import prepare_torch
from models.training.losses import LOSSES, pairwise_hinge

RULE = "hops-1"
# Pruning keeps about this many nodes for each configurable one; the real graphs are alike.
KEPT_PER_CONFIGURABLE = 2.76
NODES_PER_CONFIGURABLE = 20
ROUNDS = 2
HEADER = (
    *("n, c", "width", "forward s: ours", "plain", "times faster"),
    *("forward+backward s: ours", "plain", "times faster"),
    *("peak MiB: ours", "plain", "ratio"),
    *("scores differ by", "gradients by", "worst parameter's"),
)

WINNING_SIZES = ((500, 64), (2_000, 64), (5_000, 64))
N_SCORED = 256  # configs that inference ranks
WINNING_HEADER = (
    *("n, c", "step s: ours", "winning", "times faster"),
    *("inference s: ours", "winning", "times faster"),
)


@dataclass(frozen=True)
class Setting:
    """One line of the table."""

    n_nodes: int
    n_configs: int
    hidden: int = 64


SETTINGS = (
    Setting(500, 64),
    Setting(2_000, 64),
    Setting(5_000, 64),
    Setting(2_000, 128),
    Setting(2_000, 64, hidden=256),
)


@dataclass(frozen=True)
class Case:
    """Both models with the same weights, on the same configs of one graph."""

    # By name, each with what it takes: inputs and configs, ours as (c,) positions, plain as
    # (c, k, 18) values after its edges.
    models: Mapping[str, tuple[nn.Module, tuple[object, ...]]]
    runtime_ns: Tensor  # (c,) float64
    n_nodes: int  # after pruning

    @torch.inference_mode()
    def forward(self, name: str) -> Tensor:
        """Return the scores, (c,)."""
        return self._scores(name)

    def step(self, name: str) -> None:
        """Take the gradients of the pairwise hinge loss."""
        self.models[name][0].zero_grad()
        pairwise_hinge(self._scores(name), self.runtime_ns).backward()

    def _scores(self, name: str) -> Tensor:
        model, given = self.models[name]
        scores: Tensor = model(*given)
        return scores


def make_graph(n_nodes: int, n_configs: int, folder: Path) -> LayoutGraph:
    """Make a graph that pruning leaves about `n_nodes` nodes of."""
    k = max(4, round(n_nodes / KEPT_PER_CONFIGURABLE))
    return read_layout(write_sized(folder, GraphSize(NODES_PER_CONFIGURABLE * k, k, n_configs)))


def make_case(setting: Setting) -> Case:
    """Make a graph of about `n_nodes` kept nodes, and both models, for one thread."""
    prepare_torch(seed=0, threads=1)
    with tempfile.TemporaryDirectory() as name:
        graph = make_graph(setting.n_nodes, 2 * setting.n_configs, Path(name))
        scaler = fit_node_scaler([graph.node_feat], scaling="log1p-standardise")
        inputs = layout_inputs(graph, rule=RULE, scaler=scaler)
        sample = np.arange(setting.n_configs)
        symbols = inputs.symbols(sample)
        config = CrossConfigSageConfig(hidden=setting.hidden)
        ours = CrossConfigSage(config)
        plain = plain_copy(ours, config), (inputs, plain_edges(graph, rule=RULE), symbols)
    runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])
    models = {"ours": (ours, (inputs, sample)), "plain": plain}
    return Case(models, runtime_ns, len(inputs.opcode))


def gradient_differences(case: Case) -> tuple[float, float]:
    """Return |ours - plain| / |plain| of all gradients as one vector, and the worst parameter's."""
    ours, plain = case.models["ours"][0], case.models["plain"][0]
    assert isinstance(ours, CrossConfigSage)
    found = plain_gradients(ours)
    norms = []
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        norms.append([(found[name] - parameter.grad).norm(), parameter.grad.norm()])
    difference, size = torch.tensor(norms, dtype=torch.float64).T
    worst = (difference / size.clamp(min=1e-12)).max()
    return float(difference.norm() / size.norm()), float(worst)


def step_mib(name: str, setting: Setting) -> float:
    """Return what a forward and backward pass adds to the peak memory of a fresh process."""
    imported = "from benchmarks.speed.layout_model import Setting, make_case"
    return peak_mib(f"{imported}\ncase = make_case({setting!r})", f"case.step({name!r})")


def measure(setting: Setting) -> list[str]:
    """Measure one case; return the cells of its line."""
    case = make_case(setting)
    difference = float((case.forward("ours") - case.forward("plain")).abs().max())
    cells = [f"{case.n_nodes:,}, {setting.n_configs:,}", f"{setting.hidden}"]
    work = {name: partial(case.forward, name) for name in case.models}
    cells += ratio_cells(in_turn(work, ROUNDS))
    steps = {name: partial(case.step, name) for name in case.models}
    seconds = in_turn(steps, ROUNDS, warm_up=True)
    ours, plain = (step_mib(name, setting) for name in case.models)
    memory = [f"{ours:,.0f}", f"{plain:,.0f}", f"{ours / max(plain, 1e-9):.2f}"]
    gradients = [f"{value:.0e}" for value in gradient_differences(case)]
    return [*cells, *ratio_cells(seconds), *memory, f"{difference:.0e}", *gradients]


def ratio_cells(seconds: dict[str, list[float]]) -> list[str]:
    """Return best seconds of ours and the other, and how many times faster ours is."""
    ours, other = map(min, seconds.values())
    return [f"{value:.2f}" for value in (ours, other, other / ours)]


def report(settings: Sequence[Setting] = SETTINGS) -> list[str]:
    return section("layout_model", rounds=ROUNDS, header=HEADER, rows=map(measure, settings))


def measure_winning(n_nodes: int, n_configs: int, n_scored: int) -> list[str]:
    """Measure one size beside the winning model, each by its recipe; return the cells of its line.

    The winning model scores each config once, not ten times.
    """
    prepare_torch(seed=0, threads=1)
    recipes = {
        "cross_config_sage": load_recipe("cpu"),
        "tgraph": load_recipe("reference", ["tgraph.permutations=1"]),
    }
    steps, inferences = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        graph = make_graph(n_nodes, n_scored, Path(folder))
        for name, recipe in recipes.items():
            config = getattr(recipe, name)
            scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
            inputs = layout_inputs(
                graph, rule=RULE, scaler=scaler, with_statistics=config.statistics
            )
            model = imported(NETWORKS[name][1])(config)
            steps[name] = step_of(model, inputs, config.loss, n_configs)
            inferences[name] = lambda m=model, i=inputs: m.eval().score_all(i)
    size = f"{len(inputs.opcode):,}, {n_configs}"
    seconds = [in_turn(work, 1, warm_up=True) for work in (steps, inferences)]
    return [size, *(cell for each in seconds for cell in ratio_cells(each))]


def step_of(model: Any, inputs: LayoutInputs, loss: str, n_configs: int) -> Callable[[], None]:
    """Return a forward and backward pass over the first configs of a graph."""
    sample = np.arange(n_configs)
    runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])

    def step() -> None:
        model.train()
        model.zero_grad()
        LOSSES[loss](model(inputs, sample), runtime_ns).backward()

    return step


def report_winning(
    sizes: Sequence[tuple[int, int]] = WINNING_SIZES, *, n_scored: int = N_SCORED
) -> list[str]:
    rows = (measure_winning(*size, n_scored) for size in sizes)
    return section("winning_model", n_scored=n_scored, header=WINNING_HEADER, rows=rows)
