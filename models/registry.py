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

from common.errors import PipelineError, blame, one_of
from data.graphs.graph import Graph
from data.tree import GraphFile
from models.config.custom import imported, source_of
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
    """The kind of a model, and how it is trained and loaded.

    Attributes:
        network: Class of a network as "package.module:Class".
        ranker: Module of a ranker on statistics, in `models/trees/`.
        custom: Imported class of a custom model.
    """

    name: str
    kind: str
    network: str = ""
    ranker: str = ""
    custom: Any = None

    def train(self, job: TrainJob) -> None:
        if self.ranker:
            imported(f"models.trees.{self.ranker}:train_{self.ranker}")(job)
        else:
            place = "segments" if self.network == SEGMENT_SAGE else self.kind
            imported(TRAIN_FUNCTIONS[place])(job, self.network_class)

    def load(self, run_dir: Path, recipe: Recipe) -> Ranker:
        ranker: Ranker
        if self.ranker:
            load_ranker = imported(f"models.trees.{self.ranker}:load_{self.ranker}")
            ranker = load_ranker(self.name, run_dir, recipe)
        else:
            load_network = imported("models.graph_task:load")
            ranker = load_network(self.name, run_dir, recipe, self.network_class)
        return ranker

    @property
    def reads_ranked(self) -> bool:
        """Return whether `TrainJob.ranked` decides what the model learns."""
        return self.ranker == "config_columns"

    @property
    def network_class(self) -> Any:
        return self.custom or imported(self.network)


NETWORKS = {
    "cross_config_sage": ("layout", "models.layout.cross_config_sage:CrossConfigSage"),
    "tgraph": ("layout", "models.layout.tgraph:Tgraph"),
    "baseline_gcn": ("layout", "models.layout.gcn:BaselineGcn"),
    "late_fusion_sage": ("tile", "models.tile.late_fusion_sage:LateFusionSage"),
    "early_fusion_sage": ("tile", "models.tile.early_fusion_sage:EarlyFusionSage"),
}
SEGMENT_SAGE = "models.segments.network:SegmentSage"
TRAIN_FUNCTIONS = {
    "layout": "models.layout.network:train_layout_network",
    "tile": "models.tile.network:train_tile_network",
    "segments": "models.segments.training:train_segments",
}
# The kind and the module of each ranker on statistics.
RANKERS = {
    "layout_boosting": ("layout", "boosting"),
    "config_columns_boosting": ("layout", "config_columns"),
    "layout_linear": ("layout", "linear"),
    "tile_boosting": ("tile", "boosting"),
    "tile_linear": ("tile", "linear"),
    "tile_baseline": ("tile", "baseline"),
}
MODELS = {
    **{name: ModelEntry(name, kind, network=place) for name, (kind, place) in NETWORKS.items()},
    "segment_sage": ModelEntry("segment_sage", "layout", network=SEGMENT_SAGE),
    **{name: ModelEntry(name, kind, ranker=module) for name, (kind, module) in RANKERS.items()},
}


def model_entry(recipe: Recipe, name: str) -> ModelEntry:
    """Return a built-in or custom model by name, if the recipe may import it."""
    model = recipe.named_models.get(name, name)
    if name in recipe.custom_models:
        kind = "tile" if name in recipe.models_of("tile") else "layout"
        return ModelEntry(name, kind, network=model, custom=recipe.custom_class(name))
    if model not in MODELS:
        names = (*MODELS, *recipe.named_models)
        raise PipelineError(f"model '{name}': no such model; known: {one_of(name, names)}")
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
