"""What a search asks: which recipe near this one ranks the train split's graphs best."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.progress import log
from data.graph_store.prepare import stored_graphs
from data.graph_store.stored_graph import fingerprint
from data.tree import LAYOUT_COLLECTIONS, GraphFile, collection_named
from models.config.recipe import Recipe
from models.training.dataset import split_usable
from models.training.folds import grouped_folds
from models.training.jobs import pretrain_steps
from pipeline.tuning.objective import judged_models
from pipeline.tuning.space import Parameters, SearchSpace, value_at, with_values

_NOT_ASKED = {"name", "threads", "accelerator"}  # of a recipe


@dataclass(frozen=True)
class Question:
    """Which recipe near this one ranks these graphs best; can be handed to another process.

    Attributes:
        files: the train graphs that can be learned from; `folds` are the same, whole families each.
        shared: graphs of all layout collections, where some trial may begin from a shared model.
        out: trials/NUMBER/ (a run folder each), trials.json and best.toml go there.
    """

    recipe: Recipe
    space: SearchSpace
    files: list[GraphFile]
    shared: list[GraphFile]
    folds: tuple[tuple[GraphFile, ...], ...]
    out: Path

    def config(self) -> dict[str, Any]:
        """Return all that decides a trial's value, as TOML values.

        Where and with how many threads it is computed is no part of it.
        """
        shared = {"shared_data": fingerprint(self.shared)} if self.shared else {}
        return {
            "train_data": fingerprint(self.files),
            **shared,
            "recipe": self.recipe.model_dump(mode="json", exclude=_NOT_ASKED),
            "space": self.space.decisive(),
        }

    def recipe_with(self, params: Parameters) -> Recipe:
        """Return the recipe with `params` in the place of its own values."""
        table = with_values(self.recipe.model_dump(mode="json"), params)
        return Recipe.from_table(table, source="trial")

    def baseline_params(self) -> Parameters:
        """Return the recipe's own values, as far as the search space holds them."""
        table = self.recipe.model_dump(mode="json")
        own = {key: value_at(table, key) for key in self.space.parameters}
        return {k: v for k, v in own.items() if self.space.parameters[k].holds(v)}


def ask(recipe: Recipe, space: SearchSpace, data_dir: Path, out: Path) -> Question:
    """Read the train split, and cut the folds.

    Raises:
        PipelineError: damaged or too little data.
    """
    collection = collection_named(space.study.collection)
    models = judged_models(recipe, space.study.model, collection.kind)
    shares = any(
        pretrain_steps(recipe, model) or f"{model}.training.pretrain_steps" in space.parameters
        for model in models
    )
    needed = LAYOUT_COLLECTIONS if shares else (collection,)
    files = stored_graphs(data_dir, collections=needed, splits=("train",))
    usable, unusable = split_usable(files)
    for graph in unusable:
        log.info(f"left out: {graph.file.name}: {graph.reason}")
    own = [file for file in usable if file.collection == collection]
    folds = grouped_folds(own, space.study.folds, space.study.seed)
    return Question(recipe, space, own, usable if shares else [], folds, out)
