"""The shared part of the networks' tasks: the graphs of a step, evaluation and ranking."""

import inspect
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.errors import PipelineError
from data.cache import LRUCache
from data.families import HeldOut, hold_out
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import Graph
from data.tree import GraphFile
from features.pruning import prune_layout_graph
from features.scaling import NodeScaler, fit_node_scaler
from models.config.networks import TrainingConfig
from models.config.recipe import Recipe
from models.registry import TrainJob
from models.training.device import (
    RANKING_KEYS,
    OnDevice,
    allows_tf32,
    computing,
    device_of,
    explain_memory_errors,
    network_device,
    torch_prepared,
)
from models.training.loop import WEIGHTS, load_network, load_tensors

Inputs = TypeVar("Inputs", bound=OnDevice)
Read = Callable[[Any], Any]  # maps a graph to the inputs of a network, an OnDevice


@dataclass(frozen=True)
class SampledGraphs(Generic[Inputs]):
    """Train graphs in rounds: each round has every graph once, in another random order.

    A step takes the next graphs, which are read during the step before.
    """

    files: tuple[GraphFile, ...]  # train graphs with an order of configs
    inputs: LRUCache[Inputs]
    config: Any
    seed: int

    @property
    def n_per_step(self) -> int:
        return int(self.config.graphs_per_step)

    def graphs_of(self, step: int) -> list[int]:
        """Return the positions in `files` of a step's graphs. Steps count from 0."""
        n_files = len(self.files)
        n_taken = min(self.n_per_step, n_files)
        numbers = range(step * n_taken, (step + 1) * n_taken)
        orders = {r: self._order(r) for r in {number // n_files for number in numbers}}
        return [orders[number // n_files][number % n_files] for number in numbers]

    def _order(self, number: int) -> list[int]:
        # The 1 tells a round from the step with the same number.
        rng = np.random.default_rng([self.seed, number, 1])
        return [int(position) for position in rng.permutation(len(self.files))]

    def prefetch(self, step: int) -> None:
        self.inputs.prefetch([self.files[i] for i in self.graphs_of(step)])

    def names_of(self, indices: Iterable[int]) -> str:
        return ", ".join(self.files[i].name for i in indices)


@dataclass(frozen=True)
class HeldOutGraphs(SampledGraphs[Inputs], ABC):
    """Train graphs, of which some graphs or configs are held out."""

    held_out: HeldOut  # graphs or configs that training does not use

    @abstractmethod
    def judged(self, model: Any, inputs: Inputs) -> Iterator[float]:
        """Yield scores of the order of a graph's held-out configs. Higher is better."""

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> float:
        """Return the mean score of the held-out graphs. It is not finite if a score is not."""
        files = self.held_out.judged
        values = [value for file in files for value in self.judged(model, self.inputs(file))]
        if not values:
            raise PipelineError(
                "training.early_stop: no held-out graph or config gives an order to judge by; "
                "set it to 0, or add train graphs"
            )
        return float(np.mean(values))


def held_out_graphs(job: TrainJob, training: TrainingConfig) -> HeldOut:
    """Hold out some graphs or configs of a job for early stopping, or none without it."""
    files = tuple(job.files)
    return hold_out(files, job.seed) if training.early_stop else HeldOut(files)


def draw(rng: np.random.Generator, n: int, at_most: int) -> NDArray[np.int64]:
    """Draw up to `at_most` positions below n, in no random order. The cost does not grow with n."""
    return rng.choice(n, min(n, at_most), replace=False, shuffle=False)


def loss_of(model: Any, scores: Any, runtime: Tensor) -> Tensor:
    """Return the loss of scores.

    Args:
        model: Network with a `config` and `losses`.
        scores: (c,) scores of one graph, or (g, c) of several graphs.
        runtime: Runtimes in the shape of the scores.

    Returns:
        () loss, or (g,) losses.
    """
    name = model.config.loss
    _check_result(model, "forward", scores, runtime.shape)
    loss: Tensor = model.losses[name](scores, runtime)
    _check_result(model, f"loss '{name}'", loss, runtime.shape[:-1])
    return loss


def _check_result(model: nn.Module, source: str, result: Any, shape: torch.Size) -> None:
    is_tensor = isinstance(result, Tensor)
    has_gradient = is_tensor and (result.requires_grad or not torch.is_grad_enabled())
    if not has_gradient or result.shape != shape:
        kind = f"{tuple(result.shape)}" if is_tensor else f"a {type(result).__name__}"
        raise PipelineError(
            f"model '{_place_of(type(model))}': {source} returned {kind}"
            f"{' without a gradient' * (is_tensor and not has_gradient)}, expected a tensor "
            f"{tuple(shape)} that is computed from parameters, without detach or no_grad"
        )


def _place_of(network: type[Any]) -> str:
    return f"{network.__module__}:{network.__qualname__}"


@contextmanager
def faults_of(network: type[Any]) -> Iterator[None]:
    """Raise errors of a custom network's code as PipelineErrors that name its class and line."""
    file = inspect.getfile(network)
    try:
        yield
    except (PipelineError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        frames = [at for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
        if not frames or network.__module__.startswith("models."):
            raise
        at = f"in {frames[-1].name}, line {frames[-1].lineno} of {Path(file).name}"
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PipelineError(f"model '{_place_of(network)}': {at}: {reason}") from error


def begin_layout_network(
    job: TrainJob, network: type[Any], files: Sequence[GraphFile], device: torch.device
) -> tuple[Any, NodeScaler, LRUCache[Any]]:
    """Make a network for a training, after one pass over opcodes and features of train graphs."""
    features, opcodes = job.recipe.features, set[int]()

    def node_feats() -> Iterator[NDArray[np.float32]]:
        for file in files:
            pruned = prune_layout_graph(
                read_layout(file), rule=features.prune, padding=features.padding
            )
            opcodes.update(pruned.opcode.tolist())
            yield pruned.node_feat

    scaler = fit_node_scaler(node_feats(), scaling=features.scaling)
    model = network(getattr(job.recipe, job.model))
    if job.start is not None:
        load_parameters(model, job.start)
    model.set_known_opcodes(np.asarray(sorted(opcodes), dtype=np.uint8))
    read = model.reader(features, scaler)
    return model, scaler, LRUCache(lambda file: read(read_layout(file)).to(device))


@torch.no_grad()
def load_parameters(model: nn.Module, start: Path) -> None:
    """Copy the parameters of a trained network. Buffers, such as known opcodes, stay."""
    tensors, _ = load_tensors(start / WEIGHTS)
    for name, parameter in model.named_parameters():
        weights = tensors.get(f"model.{name}")
        if weights is None or weights.shape != parameter.shape:
            raise PipelineError(f"{start / WEIGHTS}: has no '{name}' {tuple(parameter.shape)}")
        parameter.copy_(weights)


@contextmanager
def torch_for(job: TrainJob, network: type[Any]) -> Iterator[tuple[Any, torch.device]]:
    """Prepare torch to train a network by its recipe."""
    recipe, config = job.recipe, getattr(job.recipe, job.model)
    device, tf32 = network_device(recipe.accelerator), allows_tf32(config.training)
    threads, seed = recipe.n_threads, job.seed
    with (
        torch_prepared(seed=seed, threads=threads, device=device, tf32=tf32),
        faults_of(network),
    ):
        yield config, device


@dataclass(frozen=True)
class NetworkRanker:
    """A trained network, and the function that reads its inputs."""

    model: Any
    read: Read
    threads: int

    def score(self, graph: Graph) -> NDArray[np.float32]:
        device, config, name = device_of(self.model), self.model.config, type(self.model).__name__
        tf32 = allows_tf32(config.training)
        with (
            torch_prepared(threads=self.threads, device=device, tf32=tf32),
            computing(device, config.training.precision),
            explain_memory_errors(f"rank by {name}", name, config, RANKING_KEYS),
            faults_of(type(self.model)),
        ):
            if self._reads not in graph.cache:
                graph.cache[self._reads] = self.read(graph).to(device)
            scores: NDArray[np.float32] = self.model.score_all(graph.cache[self._reads])
        return scores

    @cached_property
    def _reads(self) -> Hashable:
        return device_of(self.model), _by_content(self.read)


def _by_content(value: Any) -> Hashable:
    # Readers with equal results have equal keys.
    if isinstance(value, partial):
        return value.func, *((name, _by_content(part)) for name, part in value.keywords.items())
    if isinstance(value, NodeScaler):
        return value.scaling, value.shift.tobytes(), value.factor.tobytes()
    return value


def load(name: str, run_dir: Path, recipe: Recipe, network: type[Any]) -> NetworkRanker:
    """Load a trained network."""
    device, config = network_device(recipe.accelerator), getattr(recipe, name)
    with torch_prepared(threads=recipe.n_threads, device=device), faults_of(network):
        model = network(config)
        scaler = load_network(model, run_dir)
    read = model.reader(recipe.features, scaler)
    return NetworkRanker(model.to(device), read, recipe.n_threads)
