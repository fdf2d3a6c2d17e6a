"""The models by name, and how each model is trained and loaded.

A model's module is imported when the model is trained or loaded, with all its requirements.
"""

from collections.abc import Collection as Container
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, blame
from data.graphs.graph import Graph
from data.tree import GraphFile
from models.config.custom import import_place, source_of
from models.config.recipe import Recipe
from models.run_folder import CONFIG, check_done, is_done, read_config, read_recipe


@dataclass(frozen=True)
class TrainJob:
    """One model to train.

    Attributes:
        recipe: Recipe of the collection, from `Recipe.of`.
        start: Run folder of the trained network whose weights the training starts from.
        ranked: Graphs that the model will rank, if its training reads them. See `reads_ranked`.
    """

    model: str
    recipe: Recipe
    files: Sequence[GraphFile]
    seed: int
    run_dir: Path
    start: Path | None = None
    ranked: Sequence[GraphFile] = ()


class Ranker(Protocol):
    """A trained model."""

    def score(self, graph: Graph) -> NDArray[np.float32] | None:
        """Score every config (c,) of a graph. A lower score means a faster config.

        None leaves the graph to the other members of a blend.
        """


@dataclass(frozen=True)
class ModelEntry:
    """The kind of a model, and the functions that train and load it.

    Attributes:
        trainer: Function of a job as "package.module:function". A network's takes its class too.
        loader: Function of a name, a run folder and a recipe. A network's takes its class too.
        network: Class of a network as "package.module:Class".
        custom: Imported class of a custom model.
    """

    name: str
    kind: str
    trainer: str
    loader: str
    network: str = ""
    custom: Any = None

    def train(self, job: TrainJob) -> None:
        import_place(self.trainer)(job, *self._network())

    def load(self, run_dir: Path, recipe: Recipe) -> Ranker:
        ranker: Ranker = import_place(self.loader)(self.name, run_dir, recipe, *self._network())
        return ranker

    @property
    def reads_ranked(self) -> bool:
        """Return whether `TrainJob.ranked` decides what the model learns."""
        return self.trainer.startswith("models.trees.config_columns:")

    @property
    def network_class(self) -> Any:
        return self.custom or import_place(self.network)

    def _network(self) -> list[Any]:
        return [self.network_class] if self.network else []


NETWORKS = {
    "cross_config_sage": ("layout", "models.layout.cross_config_sage:CrossConfigSage"),
    "tgraph": ("layout", "models.layout.tgraph:Tgraph"),
    "baseline_gcn": ("layout", "models.layout.gcn:BaselineGcn"),
    "late_fusion_sage": ("tile", "models.tile.late_fusion_sage:LateFusionSage"),
    "early_fusion_sage": ("tile", "models.tile.early_fusion_sage:EarlyFusionSage"),
}
SEGMENT_SAGE = "models.segments.network:SegmentSage"
# The kind and the module of each ranker on statistics.
RANKERS = {
    "layout_boosting": ("layout", "boosting"),
    "config_columns_boosting": ("layout", "config_columns"),
    "layout_linear": ("layout", "linear"),
    "tile_boosting": ("tile", "boosting"),
    "tile_linear": ("tile", "linear"),
    "tile_baseline": ("tile", "baseline"),
}


def _network(name: str, kind: str, place: str) -> ModelEntry:
    trainer = "segments.training" if place == SEGMENT_SAGE else f"{kind}.network"
    functions = f"models.{trainer}:train", "models.graph_task:load"
    return ModelEntry(name, kind, *functions, place)


def _ranker(name: str, kind: str, module: str) -> ModelEntry:
    place = f"models.trees.{module}"
    return ModelEntry(name, kind, f"{place}:train_{module}", f"{place}:load_{module}")


MODELS = {
    **{name: _network(name, *entry) for name, entry in NETWORKS.items()},
    "segment_sage": _network("segment_sage", "layout", SEGMENT_SAGE),
    **{name: _ranker(name, *entry) for name, entry in RANKERS.items()},
}


def model_entry(recipe: Recipe, name: str) -> ModelEntry:
    """Return a built-in or custom model by name, if the recipe may import it."""
    model = recipe.named_models.get(name, name)
    if name in recipe.custom_models:
        kind = "tile" if name in recipe.models_of("tile") else "layout"
        return replace(_network(name, kind, model), custom=recipe.custom_class(name))
    if model not in MODELS:
        names = ", ".join((*MODELS, *recipe.named_models))
        raise PipelineError(f"model '{name}': no such model; known: {names}")
    return replace(MODELS[model], name=name)


def load_model(folder: Path, trust: Container[str] = ()) -> Ranker:
    """Load the trained model of a run folder. A custom model must be in `trust`."""
    config = read_config(folder)
    missing = [key for key in ("model", "recipe") if key not in config]
    if missing:
        raise PipelineError(f"{folder / CONFIG}: key '{missing[0]}' is missing; not a model's run")
    if not is_done(folder):
        raise PipelineError(f"{folder}: its training has not ended; run it again with --resume")
    check_done(folder)
    recipe = read_recipe(folder, trust)
    if place := recipe.custom_models.get(config["model"]):
        source = source_of(recipe.custom_class(config["model"]))
        if config.get("source") != source:
            raise PipelineError(
                f"{folder}: model '{place}': {', '.join(source)} has changed since; restore the "
                "file, or train again"
            )
    with blame(folder, "the folder of a trained model"):
        return model_entry(recipe, config["model"]).load(folder, recipe)
