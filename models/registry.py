"""The models by name: what each is told when it is trained, and how it is trained and loaded.

A model's module is imported when it is trained or loaded, with all that it needs.
"""

import inspect
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.graph import Graph
from data.tree import GraphFile
from models.config.custom import imported
from models.config.recipe import Recipe


@dataclass(frozen=True)
class TrainJob:
    """One model to train: on which graphs, by which recipe and seed, into which run folder."""

    model: str
    recipe: Recipe
    files: Sequence[GraphFile]
    seed: int
    run_dir: Path


class Ranker(Protocol):
    """A trained model."""

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of `graph`; (c,) float32, lower = faster."""


@dataclass(frozen=True)
class ModelEntry:
    """A model."""

    name: str
    kind: str
    # Has `train(job)` and `load(name, run_dir, recipe)`; of a network `train(job, class)` alone.
    module: str
    network: str = ""  # where its class stands, "package.module:Class"
    own: Any = None  # the class itself of a custom model

    def train(self, job: TrainJob) -> None:
        """Train into the job's run folder."""
        import_module(self.module).train(job, *self._network())

    def load(self, run_dir: Path, recipe: Recipe) -> Ranker:
        """Load what `train` wrote."""
        module = import_module("models.graph_task" if self.network else self.module)
        ranker: Ranker = module.load(self.name, run_dir, recipe, *self._network())
        return ranker

    @property
    def network_class(self) -> Any:
        """Return a network's class, of one's own as `checked` makes it."""
        return checked(self.network, self.own) if self.own else imported(self.network)

    def _network(self) -> list[Any]:
        return [self.network_class] if self.network else []


NETWORKS = {
    "cross_config_sage": ("layout", "models.layout.cross_config_sage:CrossConfigSage"),
    "tgraph": ("layout", "models.layout.tgraph:Tgraph"),
    "baseline_gcn": ("layout", "models.layout.gcn:BaselineGcn"),
    "late_fusion_sage": ("tile", "models.tile.late_fusion_sage:LateFusionSage"),
    "early_fusion_sage": ("tile", "models.tile.early_fusion_sage:EarlyFusionSage"),
}
OTHERS = {
    "segment_sage": ("layout", "models.segments.network", "models.segments.network:SegmentSage"),
    "layout_boosting": ("layout", "models.trees.boosting"),
    "config_columns_boosting": ("layout", "models.trees.one_program"),
    "layout_linear": ("layout", "models.trees.linear"),
    "tile_boosting": ("tile", "models.trees.boosting"),
    "tile_linear": ("tile", "models.trees.linear"),
}


def _network(name: str, kind: str, place: str) -> ModelEntry:
    return ModelEntry(name, kind, f"models.{kind}.network", place)


MODELS = {name: _network(name, *entry) for name, entry in NETWORKS.items()}
MODELS |= {name: ModelEntry(name, *entry) for name, entry in OTHERS.items()}


def model_entry(recipe: Recipe, name: str) -> ModelEntry:
    """Return the model called `name`, a built-in one or one of the recipe's own.

    Raises:
        PipelineError: there is no such model; the known ones are listed.
        UsageError: a custom model that the recipe may not import.
    """
    own = recipe.own_models
    if name in own:
        kind = "layout" if own[name] in recipe.layout.models else "tile"
        return replace(_network(name, kind, own[name]), own=recipe.own_class(name))
    if name not in MODELS:
        known = ", ".join((*MODELS, *own))
        raise PipelineError(f"model '{name}': no such model; known: {known}")
    return MODELS[name]


def checked(place: str, network: Any) -> Any:
    """Return the network of `place`, with an `__init__`, `forward` and losses whose faults name it.

    They raise PipelineError where the class's own fail, where `forward` gives not one score for
    each config, or scores from which nothing can be learned, or a loss not one number per graph.
    """
    import torch  # by the class, so at hand already

    def called(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (PipelineError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            file, frames = inspect.getfile(network), traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == file]
            at = f", line {lines[-1]} of {Path(file).name}" if lines else ""
            raise PipelineError(f"model '{place}': in {what}{at}: {reason}") from error

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        known = set(sys.modules)
        try:
            called("__init__", network.__init__, self, *args, **kwargs)
        finally:
            _remove_sources_of({*sys.modules} - known)

    def check(what: str, made: Any, expected: tuple[int, ...], of: str = "") -> None:
        is_tensor = isinstance(made, torch.Tensor)
        if not is_tensor or tuple(made.shape) != expected:
            told = tuple(made.shape) if is_tensor else f"a {type(made).__name__}"
            wanted = f"{expected}" if is_tensor else f"a tensor {expected}"
            raise PipelineError(f"model '{place}': {what} returned {told}{of}, expected {wanted}")

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        inputs, *distinct = (*args, *kwargs.values())
        scores = called("forward", network.forward, self, *args, **kwargs)
        expected = (len(distinct[0]),) if distinct else tuple(inputs.runtime.shape)
        check("forward", scores, expected)
        if self.training and torch.is_grad_enabled() and not scores.requires_grad:
            raise PipelineError(
                f"model '{place}': no parameter can learn from what forward returned; expected "
                "scores that are computed from its parameters, without detach or no_grad"
            )
        return scores

    def loss_of(name: str, function: Callable[..., Any], scores: Any, runtime: Any) -> Any:
        loss = called(f"loss '{name}'", function, scores, runtime)
        check(f"loss '{name}'", loss, tuple(scores.shape[:-1]), f" of scores {tuple(scores.shape)}")
        if scores.requires_grad and not loss.requires_grad:
            raise PipelineError(
                f"model '{place}': nothing can be learned from loss '{name}'; expected one that is "
                "computed from the scores, without detach or no_grad"
            )
        return loss

    losses = {name: partial(loss_of, name, own) for name, own in network.losses.items()}
    changed = {"__init__": init, "forward": forward, "losses": losses}
    return type(network.__name__, (network,), changed)


def _remove_sources_of(modules: Collection[str]) -> None:
    """Remove what PyG's convolutions leave in the temporary folder: their code, which is loaded."""
    for name in modules:
        file = Path(getattr(sys.modules[name], "__file__", None) or ".")
        if file.parent == Path(tempfile.gettempdir()) and file.name.startswith(f"{name}_"):
            file.unlink(missing_ok=True)
