"""The cost of a network's training step: timed on this machine, measured earlier, or computed.

The time of a step grows with its values, nodes x configs x channels. On a GPU it is at least the
time in which the host launches the kernels. Ranking has no backward pass and takes a third.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from common.errors import UsageError
from common.files import read_json
from common.settings import ROOT, FrozenConfig
from data.tree import Collection
from features.pruning import kept_nodes
from models.config.networks import SegmentSageConfig
from models.config.recipe import Recipe
from models.registry import model_entry
from models.training.device import CPU, torch_prepared
from pipeline.planning.synthetic_graphs import (
    GraphSize,
    SyntheticWorkload,
    make_workload,
    step_seconds,
    train_steps,
)

# The file of `python -m benchmarks.gpu`, and the measurements of one GPU in this repository.
MEASURED_HERE, MEASURED = ROOT / "runs/gpu/steps.json", Path(__file__).with_name("steps.json")
# Time to launch the kernels of a step without CUDA graphs, if it was not measured.
HOST_MS = 15.0
# Passes over memory for each tensor that the forward pass saves for the backward pass, and bytes of
# memory for each byte saved: networks have 9 to 48 and 0.9 to 2.9.
MOVES_PER_SAVED, PEAK_PER_SAVED = 20, 2
RANKING_SHARE = 1 / 3
# Larger steps are timed on fewer nodes. A step of this size takes .1 s on one core.
MAX_VALUES, MIN_GRAPHS, MIN_NODES = 1 << 20, 4, 32
# Edges and configurable nodes of a pruned graph, by nodes.
EDGES_PER_NODE, CONFIGURABLE = 1.65, 0.28


# Shares of the data sheet that networks reach. Bandwidth: training steps of cross_config_sage on an
# H100. Arithmetic: assumed.
MEMORY_SHARE, ARITHMETIC_SHARE = 0.5, 0.6


@dataclass(frozen=True)
class Card:
    """A GPU.

    Attributes:
        name: Name for `--gpu`, or torch's name of a card that is not in `CARDS`.
        capability: CUDA compute capability. It decides whether the card has bfloat16.
        memory_gib: Memory as torch finds it, in GiB.
        gb_s: Memory bandwidth, in GB per second.
        tflops: Dense float32 operations, in 10^12 per second.
        half_tflops: Dense 16-bit operations, in 10^12 per second.
    """

    name: str
    capability: tuple[int, int]
    memory_gib: float
    gb_s: float
    tflops: float
    half_tflops: float


CARDS = {
    card.name: card
    for card in (
        Card("t4", (7, 5), 14.6, gb_s=320, tflops=8.1, half_tflops=65),
        Card("p100", (6, 0), 15.9, gb_s=732, tflops=9.5, half_tflops=19),
        Card("a100", (8, 0), 79.2, gb_s=2039, tflops=19.5, half_tflops=312),
        Card("h100", (9, 0), 79.2, gb_s=3350, tflops=67, half_tflops=989),
        Card("h200", (9, 0), 139.8, gb_s=4800, tflops=67, half_tflops=989),
    )
}


def card_named(name: str) -> Card | None:
    """Return a card, None for an unknown one.

    Args:
        name: torch's name of the card, for example "Tesla T4".
    """
    words = name.lower().replace("-", " ").split()
    return next((card for key, card in CARDS.items() if key in words), None)


class MeasuredStep(FrozenConfig):
    """A training step that was timed on a GPU.

    Attributes:
        model: Name of the network.
        nodes: Nodes that the step computes, of all its graphs after pruning.
        configs: Configs of each graph.
        hidden: Channels of the network.
        precision: Type of the activations.
        step_ms: Wall time of a step, in milliseconds.
        host_ms: Time in which the host launches the kernels. It bounds a step of this time.
    """

    model: str
    nodes: int
    configs: int
    hidden: int
    precision: str
    step_ms: float
    host_ms: float

    @property
    def n_bytes(self) -> int:
        size: int = getattr(torch, self.precision).itemsize
        return self.nodes * self.configs * self.hidden * size


class StepTimes(FrozenConfig):
    """Steps that were timed on one GPU.

    Attributes:
        card: Name of the GPU, as torch has it.
        steps: Training steps, any number for each network.
    """

    card: str
    steps: tuple[MeasuredStep, ...]

    def kernels_s(self, model: str, n_bytes: float) -> float | None:
        """Interpolate the time of a network's kernels, in proportion beyond the measured sizes.

        Args:
            model: Name of the network.
            n_bytes: Bytes of one (nodes, configs, channels) tensor of the step.

        Returns:
            Seconds, None if no step of the network was bound by the GPU.
        """
        steps = [step for step in self.steps if step.model == model]
        points = sorted((s.n_bytes, s.step_ms) for s in steps if s.step_ms > s.host_ms)
        if not points:
            return None
        sizes, times = zip(*points, strict=True)
        nearest = min(max(n_bytes, sizes[0]), sizes[-1])
        return float(np.interp(nearest, sizes, times)) / 1e3 * n_bytes / nearest

    def host_s(self, model: str, n_bytes: float) -> float:
        """Interpolate the time in which the host launches a network's kernels, in seconds.

        Args:
            model: Name of the network.
            n_bytes: Bytes of one (nodes, configs, channels) tensor of the step.
        """
        points = sorted((step.n_bytes, step.host_ms) for step in self.steps if step.model == model)
        sizes, times = zip(*points or [(0, HOST_MS)], strict=True)
        return float(np.interp(n_bytes, sizes, times)) / 1e3


@dataclass(frozen=True)
class StepSize:
    """The size of a training step. `nodes` and `configs` are of each graph or kernel."""

    n_graphs: int
    nodes: float
    configs: int
    hidden: int

    @property
    def values(self) -> float:
        """Return the number of values of one (nodes, configs, channels) tensor of all graphs."""
        return self.n_graphs * self.nodes * self.configs * self.hidden

    def scaled_down(self) -> "StepSize":
        """Return a step of at most about MAX_VALUES, with fewer graphs and nodes."""
        per_node = self.configs * self.hidden
        n_graphs = min(self.n_graphs, max(MIN_GRAPHS, round(MAX_VALUES / (per_node * self.nodes))))
        nodes = min(self.nodes, max(MIN_NODES, MAX_VALUES / (per_node * n_graphs)))
        return replace(self, n_graphs=n_graphs, nodes=round(nodes))


def step_size(recipe: Recipe, model: str, nodes: float, configs: float) -> StepSize:
    """Return the size of a network's training step.

    Args:
        recipe: Recipe with the network.
        model: Name of the network.
        nodes: Nodes of a graph, before pruning.
        configs: Distinct configs of a graph.
    """
    config: Any = getattr(recipe, model)
    hidden = getattr(config, "hidden", 1)
    if model_entry(recipe, model).kind == "tile":
        n_configs = min(config.configs_per_kernel, max(2, round(configs)))
        return StepSize(config.kernels_per_step, nodes, n_configs, hidden)
    kept = kept_nodes(recipe.features.prune, nodes)
    # A step computes one segment with gradients.
    if isinstance(config, SegmentSageConfig):
        kept = min(kept, config.segment_nodes)
    n_configs = min(config.configs_per_step, max(2, round(configs)))
    return StepSize(config.graphs_per_step, kept, n_configs, hidden)


@dataclass
class StepCosts:
    """The costs of training steps of a recipe's networks.

    Attributes:
        recipe: Recipe with the networks.
        card: The GPU. None for one thread of this machine's processor.
        times: Steps that were measured on a GPU. None without a GPU.
        source: Where the costs are from, for people.
    """

    recipe: Recipe
    card: Card | None = None
    times: StepTimes | None = None
    source: str = "timed on this machine's processor, one thread"
    _known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def of(self, collection: Collection) -> "StepCosts":
        """Return the costs of the recipe of one collection. The steps timed so far are shared.

        Args:
            collection: The collection.
        """
        return replace(self, recipe=self.recipe.of(collection))

    def uses_gpu(self, model: str) -> bool:
        """Return whether a model is a network that this recipe computes on the GPU.

        Args:
            model: Name of the model.
        """
        is_network = bool(model_entry(self.recipe, model).network)
        return is_network and self.card is not None and self.recipe.accelerator != "cpu"

    def step_s(self, model: str, size: StepSize) -> float:
        """Return the time of a training step, in seconds.

        Args:
            model: Name of the network.
            size: Size of the step.
        """
        host_s, kernels_s = self._host_and_kernels_s(model, size)
        entry = model_entry(self.recipe, model)
        # Other networks compute the graphs of a step one after the other.
        is_joined = entry.kind == "tile" or getattr(entry.network_class, "is_joinable", False)
        return max(host_s * (1 if is_joined else size.n_graphs), kernels_s)

    def ranking_s(self, model: str, size: StepSize, ratio: float) -> float:
        """Return the time to rank configs of a graph, in seconds.

        Args:
            model: Name of the network.
            size: Size of a training step.
            ratio: Values of the ranking, as a multiple of those of the step.
        """
        host_s, kernels_s = self._host_and_kernels_s(model, size)
        return RANKING_SHARE * max(host_s, ratio * kernels_s)

    def _host_and_kernels_s(self, model: str, size: StepSize) -> tuple[float, float]:
        # The host time is 0 if the step is timed on this machine's processor.
        card = self.card if self.uses_gpu(model) else None
        if card is None or self.times is None:
            return 0.0, self._timed(model, size)
        itemsize = self._itemsize(model)
        n_bytes = size.values * itemsize
        host_s, kernels_s = self.times.host_s(model, n_bytes), self.times.kernels_s(model, n_bytes)
        if kernels_s is None:
            tflops = ARITHMETIC_SHARE * (card.tflops if itemsize == 4 else card.half_tflops)
            n_flops, n_saved = self._probed(model, size)
            moved_gb = MOVES_PER_SAVED * n_saved * itemsize / 1e9
            kernels_s = max(n_flops / tflops / 1e12, moved_gb / (MEMORY_SHARE * card.gb_s))
        elif measured := card_named(self.times.card):
            kernels_s *= measured.gb_s / card.gb_s
        return host_s, kernels_s

    def peak_bytes(self, model: str, size: StepSize) -> float:
        """Return the memory of a training step's activations.

        Args:
            model: Name of the network.
            size: Size of the step.
        """
        return PEAK_PER_SAVED * self._probed(model, size)[1] * self._itemsize(model)

    def _itemsize(self, model: str) -> int:
        is_exact = getattr(self.recipe, model).training.precision == "float32"
        return 2 if self.uses_gpu(model) and not is_exact else 4

    def _config(self, model: str) -> str:
        # Other steps have the same cost.
        config: Any = getattr(self.recipe, model)
        return f"{model} {config.model_dump_json(exclude={'training': {'steps', 'warmup_steps'}})}"

    def _timed(self, model: str, size: StepSize) -> float:
        timed = size.scaled_down()
        key = ("seconds", self._config(model), timed)
        if key not in self._known:
            with torch_prepared(threads=1, device=CPU):
                self._known[key] = step_seconds(self._workload(model, timed), CPU)
        return float(self._known[key] * size.values / timed.values)

    def _probed(self, model: str, size: StepSize) -> tuple[float, float]:
        """Count the operations of a step, and the values that it saves for the backward pass.

        A small step on the CPU counts them, because the counter treats sparse matrices as dense.
        """
        small, saved = size.scaled_down(), dict[int, int]()
        key = ("probe", self._config(model), small)
        if key not in self._known:

            def pack(tensor: Tensor) -> Tensor:
                # Graphs are sparse and small.
                if tensor.layout == torch.strided:
                    storage = tensor.untyped_storage()
                    saved[storage.data_ptr()] = storage.nbytes()
                return tensor

            workload, flops = self._workload(model, small), FlopCounterMode(display=False)
            hooks = saved_tensors_hooks(pack, lambda tensor: tensor)
            with torch_prepared(threads=1, device=CPU), hooks, flops:
                train_steps(workload, CPU, 1, lambda _: None)
            counts = flops.get_total_flops(), sum(saved.values()) / 4
            self._known[key] = tuple(count / small.values for count in counts)
        n_flops, n_saved = self._known[key]
        return n_flops * size.values, n_saved * size.values

    def _workload(self, model: str, size: StepSize) -> SyntheticWorkload:
        nodes = max(4, round(size.nodes))
        n_edges, n_configurable = round(EDGES_PER_NODE * nodes), round(CONFIGURABLE * nodes)
        graph = GraphSize(nodes, n_edges, n_configurable, 2 * size.configs)
        return make_workload(self.recipe, model, graph, n_graphs=size.n_graphs)


def find_step_costs(recipe: Recipe, gpu: str | None, file: Path | None) -> StepCosts:
    """Choose the source of the costs of steps.

    Args:
        recipe: Recipe with the networks.
        gpu: Name of a card or "none". None means the card of `file`, or else this machine's device.
        file: File of `python -m benchmarks.gpu`. None means the file of this machine, or else the
            measurements in this repository.

    Raises:
        PipelineError: The file is missing or damaged.
        UsageError: The card is not known.
    """
    path = file or (MEASURED_HERE if MEASURED_HERE.is_file() else MEASURED)
    times = read_json(path, StepTimes, expected="steps as `python -m benchmarks.gpu` writes them")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    name = gpu or (times.card if file else device)
    if name == "none":
        return StepCosts(recipe)
    card = CARDS.get(name) or card_named(name)
    if card is None:
        raise UsageError(f"the card {name} is not known; pass --gpu NAME")
    source = f"measured on {times.card}, or computed"
    if card != card_named(times.card):
        source += "; without a GPU an estimate may be off by a factor of 2"
    return StepCosts(recipe, card, times, source)
