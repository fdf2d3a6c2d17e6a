"""The models by name: how each is trained and loaded.

A model's module is imported when it is trained or loaded, with all that it needs.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from models.config.own_models import checked, imported
from models.config.recipe import Recipe
from models.training.jobs import Ranker, TrainJob


@dataclass(frozen=True)
class ModelEntry:
    """A model.

    Attributes:
        module: has `train(job)` and `load(name, run_dir, recipe)`; of a network `train(job, class)`
            alone, since all are loaded by models/graph_task.py.
        network: where its class stands, "package.module:Class"; "" for none.
    """

    name: str
    kind: str
    module: str
    network: str = ""

    def train(self, job: TrainJob) -> None:
        """Train into the job's run folder."""
        import_module(self.module).train(job, *self._network())

    def load(self, run_dir: Path, recipe: Recipe) -> Ranker:
        """Load what `train` wrote."""
        module = import_module("models.graph_task" if self.network else self.module)
        ranker: Ranker = module.load(self.name, run_dir, recipe, *self._network())
        return ranker

    def _network(self) -> tuple[Any, ...]:
        if not self.network:
            return ()
        return (imported(self.network) if self.name in MODELS else checked(self.network),)


NETWORKS = {
    "cross_config_sage": ("layout", "models.layout.cross_config_sage:CrossConfigSage"),
    "tgraph": ("layout", "models.layout.tgraph:Tgraph"),
    "baseline_gcn": ("layout", "models.layout.gcn:BaselineGcn"),
    "late_fusion_sage": ("tile", "models.tile.late_fusion_sage:LateFusionSage"),
    "early_fusion_sage": ("tile", "models.tile.early_fusion_sage:EarlyFusionSage"),
}
OTHERS = {
    "segment_sage": ("layout", "models.segments.task", "models.segments.network:SegmentSage"),
    "layout_boosting": ("layout", "models.trees.boosting"),
    "config_columns_boosting": ("layout", "models.trees.one_program"),
    "layout_linear": ("layout", "models.trees.linear"),
    "tile_boosting": ("tile", "models.trees.boosting"),
    "tile_linear": ("tile", "models.trees.linear"),
}


def _network(name: str, kind: str, place: str) -> ModelEntry:
    return ModelEntry(name, kind, f"models.{kind}.task", place)


MODELS: dict[str, ModelEntry] = {
    **{name: _network(name, *entry) for name, entry in NETWORKS.items()},
    **{name: ModelEntry(name, *entry) for name, entry in OTHERS.items()},
}


def model_entry(recipe: Recipe, name: str) -> ModelEntry:
    """Return the model called `name`, a built-in one or one of the recipe's own.

    Raises:
        PipelineError: there is no such model; the known ones are listed.
    """
    own = recipe.own_models
    if name in own:
        return _network(name, "layout" if own[name] in recipe.layout.models else "tile", own[name])
    if name not in MODELS:
        known = ", ".join((*MODELS, *own))
        raise PipelineError(f"model '{name}': no such model; known: {known}")
    return MODELS[name]
