"""The cost of a network's training step: measured on a card or a processor, or computed.

All costs are in proportion to the values of a tensor (nodes, configs, channels). A GPU's step is
bound by memory: each network moves a counted number of such tensors. `python -m benchmarks.gpu`
measures steps. `make rehearsal` compares the times of the processor with whole trainings.
"""

import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from common.files import read_json
from common.settings import ROOT, FrozenConfig
from features.pruning import kept_nodes
from models.config.networks import SegmentSageConfig, step_configs
from models.config.recipe import Recipe
from models.registry import model_entry

# The file of `python -m benchmarks.gpu`, and the measurements of one GPU in this repository.
MEASURED_HERE, MEASURED = ROOT / "runs/gpu/steps.json", Path(__file__).with_name("steps.json")
COSTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# Time to launch the kernels of a step without CUDA graphs, if it was not measured.
HOST_MS = 15.0
# The largest graph keeps this many times the nodes of `kept_nodes`: 14,966 of 41,541.
MAX_KEPT_RATIO = 1.4

Sizes = NDArray[Any]


class Card(NamedTuple):
    """A GPU.

    Attributes:
        name: Name for `--gpu`.
        is_new: Whether it has bfloat16 and Triton computes products by its tensor cores.
        memory_gib: Memory as torch finds it, in GiB.
        gb_s: Memory bandwidth that a step reaches, in GB per second.
    """

    name: str
    is_new: bool
    memory_gib: float
    gb_s: float


CARDS = {name: Card(name, **facts) for name, facts in COSTS["cards"].items()}


def card_named(name: str) -> Card | None:
    """Return a card by a name of torch, for example "Tesla T4"; None for an unknown one."""
    words = name.lower().replace("-", " ").split()
    return next((card for key, card in CARDS.items() if key in words), None)


class NetworkCost(NamedTuple):
    """The cost of a step of a network, by value of a (nodes, configs, channels) tensor.

    Attributes:
        moved: Tensors that a step reads or writes, by fused kernels where there are some.
        peak: Tensors in memory at the peak.
        cpu_ns: Nanoseconds on one thread of an AMD EPYC, by value.
    """

    moved: float
    plain_moved: float
    peak: float
    plain_peak: float
    cpu_ns: float
    cpu_channel_ns: float


# Ending of the name of a network with `norm = "nodes"`.
OVER_NODES = ", norm over nodes"
NETWORK_COSTS = {name: NetworkCost(*values) for name, values in COSTS["networks"].items()}
# A custom network is reckoned like this one, without fused kernels.
LIKE_CUSTOM = "tgraph"
# Cost of a step whose forward pass is computed twice: a backward pass costs two forward passes.
AGAIN_SHARE = 4 / 3
# Further tensors that dropout moves.
DROPOUT_MOVED = 10
# Further tensors of products by cuBLAS, on an old card or in float32.
CUBLAS_MOVED, CUBLAS_PEAK = 32, 3


class MeasuredStep(FrozenConfig):
    """A training step that was timed on a GPU.

    Attributes:
        host_ms: Time in which the host launches the kernels. It bounds a step of this time.
    """

    model: str
    nodes: int
    configs: int
    hidden: int
    precision: str
    step_ms: float
    host_ms: float
    recorded: bool = False

    @property
    def n_bytes(self) -> int:
        n_values = self.nodes * self.configs * self.hidden
        return n_values * (4 if self.precision == "float32" else 2)


class StepTimes(FrozenConfig):
    """Steps that were timed on one GPU, whose name is that of torch."""

    card: str
    steps: tuple[MeasuredStep, ...]

    def kernels_s(self, model: str, n_bytes: Sizes) -> Sizes | None:
        """Interpolate the seconds of a network's kernels, in proportion beyond the measured sizes.

        `n_bytes` are those of one (nodes, configs, channels) tensor of each step. The result is
        None if no step of the network was bound by the GPU.
        """
        steps = [s for s in self.steps if s.model == model and s.step_ms > 1.05 * s.host_ms]
        points = sorted((step.n_bytes, step.step_ms) for step in steps)
        if not points:
            return None
        sizes, times = zip(*points, strict=True)
        nearest = np.clip(n_bytes, sizes[0], sizes[-1])
        return np.interp(nearest, sizes, times) / 1e3 * n_bytes / nearest

    def host_s(self, model: str, n_bytes: Sizes, *, recorded: bool) -> Sizes:
        """Interpolate the seconds in which the host launches a network's kernels."""
        steps = [step for step in self.steps if (step.model, step.recorded) == (model, recorded)]
        points = sorted((step.n_bytes, step.host_ms) for step in steps)
        sizes, times = zip(*points or [(0, HOST_MS)], strict=True)
        return np.interp(n_bytes, sizes, times) / 1e3


class Step(NamedTuple):
    """The training step of a network on each of some graphs.

    Attributes:
        values: Values of one (nodes, configs, channels) tensor of all its graphs, (g,).
        n_parts: Parts of a graph that are computed one after the other, (g,).
        in_memory: Values that are in memory at once, (g,).
    """

    n_graphs: int
    values: Sizes
    hidden: int
    n_parts: Sizes
    in_memory: Sizes


@dataclass
class StepCosts:
    """The costs of training steps of a recipe's networks.

    Attributes:
        card: The GPU. None for one thread of a processor.
    """

    card: Card | None
    times: StepTimes = field(repr=False)

    @cached_property
    def is_measured(self) -> bool:
        return self.card is not None and self.card == card_named(self.times.card)

    @property
    def source(self) -> str:
        """Return where the costs are from, for people."""
        if not self.card:
            return "measured on one thread of an AMD EPYC"
        if self.is_measured:
            return f"measured on {self.times.card}"
        return f"computed: bytes of a step / {self.card.gb_s:.0f} GB/s of the {self.card.name}"

    def on_gpu(self, recipe: Recipe, model: str) -> bool:
        """Return whether a model is a network that this recipe computes on the GPU."""
        has_gpu = self.card is not None and recipe.accelerator != "cpu"
        return has_gpu and bool(model_entry(recipe, model).network)

    def step_ms(self, recipe: Recipe, model: str, step: Step) -> tuple[Sizes, Sizes]:
        """Return the milliseconds of the kernels and of the host, (g,) each.

        Without a GPU, the kernels are the processor's work and the host has none.
        """
        name, cost = _cost_of(recipe, model)
        if not self.card or not self.on_gpu(recipe, model):
            by_value_ns = cost.cpu_ns + cost.cpu_channel_ns * step.hidden
            return step.values * by_value_ns / 1e6, 0 * step.values
        itemsize, entry = self._itemsize(recipe, model), model_entry(recipe, model)
        network: Any = entry.network_class(getattr(recipe, model))
        recorded = getattr(network, "is_recordable", False)
        n_bytes, (moved, _) = step.values * itemsize, self._tensors(recipe, model)
        kernels_s = moved * n_bytes / (self.card.gb_s * 1e9)
        measured_s = self.times.kernels_s(name, n_bytes) if self.is_measured else None
        if measured_s is not None:
            kernels_s = measured_s * moved / cost.moved
        # Layout networks compute the graphs of a step one after the other.
        n_launches = 1 if entry.kind == "tile" else step.n_graphs
        host_s = self.times.host_s(name, n_bytes, recorded=recorded)
        return 1e3 * kernels_s, 1e3 * host_s * n_launches * step.n_parts

    def peak_bytes(self, recipe: Recipe, model: str, step: Step) -> float:
        """Return the memory of the activations of the largest step."""
        _, peak = self._tensors(recipe, model)
        return float(peak * step.in_memory.max() * self._itemsize(recipe, model))

    def _tensors(self, recipe: Recipe, model: str) -> tuple[float, float]:
        """Return the tensors that a step moves, and those in memory at the peak."""
        config: Any = getattr(recipe, model)
        name, cost = _cost_of(recipe, model)
        # The cost of tgraph includes its dropout.
        is_dropped = bool(getattr(config, "dropout", 0)) and name != "tgraph"
        further = DROPOUT_MOVED * is_dropped
        if not (self.card and self.on_gpu(recipe, model) and getattr(config, "fused", False)):
            return cost.plain_moved + further, cost.plain_peak
        # segment_sage has no fused kernels.
        is_fused = cost.moved < cost.plain_moved
        by_cublas = is_fused and (not self.card.is_new or self._itemsize(recipe, model) == 4)
        return (
            cost.moved + CUBLAS_MOVED * by_cublas + further,
            cost.peak + CUBLAS_PEAK * by_cublas,
        )

    def _itemsize(self, recipe: Recipe, model: str) -> int:
        is_exact = getattr(recipe, model).training.precision == "float32"
        return 2 if self.on_gpu(recipe, model) and not is_exact else 4


def _cost_of(recipe: Recipe, model: str) -> tuple[str, NetworkCost]:
    """Return the built-in network whose cost a network has, and the cost."""
    name = recipe.named_models.get(model, model)
    if getattr(getattr(recipe, model), "norm", "") == "nodes":
        name += OVER_NODES
    name = name if name in NETWORK_COSTS else LIKE_CUSTOM
    return name, NETWORK_COSTS[name]


def step_of(
    recipe: Recipe, model: str, nodes: Sizes, configs: Sizes, *, most: bool = False
) -> Step:
    """Return a network's training step on each of g graphs with (g,) nodes and distinct configs.

    With `most`, each graph keeps as large a share of its nodes as the largest published graph.
    """
    config: Any = getattr(recipe, model)
    hidden = getattr(config, "hidden", 1)
    if model_entry(recipe, model).kind == "tile":
        n_graphs, n_configs = config.kernels_per_step, config.configs_per_kernel
        # The kernels of a step differ, so that a step has the mean size.
        values = np.full(len(nodes), (nodes * np.minimum(n_configs, configs)).mean())
        values = n_graphs * values * hidden
        return Step(n_graphs, values, hidden, np.ones(len(nodes)), values)
    n_kept = np.minimum(
        kept_nodes(recipe.features.prune, nodes) * (MAX_KEPT_RATIO if most else 1), nodes
    )
    of_step = np.array([step_configs(config, n_nodes) for n_nodes in n_kept])
    graph_values = n_kept * np.minimum(of_step, np.maximum(2, configs)) * hidden
    n_graphs = config.graphs_per_step
    if not isinstance(config, SegmentSageConfig):
        values = n_graphs * graph_values
        return Step(n_graphs, values, hidden, np.ones(len(nodes)), values)
    n_segments = np.ceil(n_kept / config.segment_nodes)
    n_live = np.minimum(config.live_segments or n_segments, n_segments)
    live_values = n_graphs * graph_values * n_live / n_segments
    if config.live_segments:
        return Step(n_graphs, live_values, hidden, n_live, live_values)
    # The backward pass computes several segments again, and has one of them in memory.
    values = live_values * np.where(n_segments > 1, AGAIN_SHARE, 1)
    return Step(n_graphs, values, hidden, n_segments, graph_values / n_segments)


def find_step_costs(gpu: str | None, file: Path | None) -> StepCosts:
    """Choose the source of the costs of steps."""
    import torch

    path = file or (MEASURED_HERE if MEASURED_HERE.is_file() else MEASURED)
    times = read_json(path, StepTimes, expected="steps as `python -m benchmarks.gpu` writes them")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    name = gpu or (times.card if file else device)
    card = card_named(name)
    if card is None and name != "none":
        raise UsageError(f"the card {name} is not known; pass --gpu NAME")
    return StepCosts(card, times)
