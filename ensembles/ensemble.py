"""The trained models of a run folder as one ranker, for graphs that come one at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from data.errors import PipelineError
from data.graph import Graph
from data.tree import COLLECTIONS, Collection, GraphFile, collection_named
from ensembles.blend import blend
from ensembles.choose_in_run import recipe_mixing, written_mixing
from ensembles.choosing import Mixing
from ensembles.sources import choose_source
from models.jobs import Progress, Ranker
from models.predict import predict, scores_table
from models.recipe import BlendConfig, recipe_from_table
from models.run_folder import CONFIG, is_done, read_config
from models.train import load_model


@dataclass(frozen=True)
class Ensemble:
    """Models that rank one collection together.

    Attributes:
        collection: whose train split they learned from.
        rankers: by member name.
        blending: how their scores become one.
        chosen: what a run chose instead of that; None if it chose nothing.
    """

    collection: Collection
    rankers: dict[str, Ranker]
    blending: BlendConfig
    chosen: Mixing | None = None

    def predict(
        self, files: Sequence[GraphFile], *, progress: Progress | None = None
    ) -> pl.DataFrame:
        """Score every config of `files` and blend; columns as in models.predict.

        Raises:
            PipelineError: a damaged file, or scores that are not finite.
        """
        return self._blended(
            {
                name: predict(ranker, files, progress=progress)
                for name, ranker in self.rankers.items()
            }
        )

    def score(self, graph: Graph) -> NDArray[np.float32]:
        """Score every config of one graph; (c,) float32, lower = faster.

        Raises:
            PipelineError: scores that are not finite.
        """
        tables = {
            name: scores_table(graph, ranker.score(graph)) for name, ranker in self.rankers.items()
        }
        return self._blended(tables)["score"].to_numpy()

    def _blended(self, members: dict[str, pl.DataFrame]) -> pl.DataFrame:
        if len(members) == 1:
            return next(iter(members.values()))
        own = recipe_mixing(self.blending, self.collection.kind, list(members))
        mixing = self.chosen or own
        return blend(members, method=mixing.method, weights=mixing.weights)


def load_ensemble(folder: Path, collection: Collection | None) -> Ensemble:
    """Load the model of a model's run folder, or all that `run` trained for a collection.

    Args:
        folder: of one trained model, or of a whole run.
        collection: which to rank; None takes the model's own. Where a run has no models of it,
            those of a sibling collection serve, as documented in ensembles.sources.

    Raises:
        PipelineError: not a run folder, no models for the collection, or damaged ones.
    """
    config = read_config(folder)
    if "model" in config:
        own = _trained_on(folder, config, collection)
        if collection is not None and collection.kind != own.kind:
            raise PipelineError(f"{folder}: ranks {own.kind} configs, not {collection.name}")
        return Ensemble(own, {folder.name: load_model(folder)}, BlendConfig())
    if collection is None:
        raise PipelineError(f"{folder}: holds models of many collections; pass --collection")
    recipe = recipe_from_table(config["recipe"], path=folder / CONFIG)
    trained = {c.name: _trained(folder / "models" / c.slug) for c in COLLECTIONS}
    have = {name for name, folders in trained.items() if folders}
    source = choose_source(collection, have, {}).collection
    if source is None:
        raise PipelineError(f"{folder}: no trained model can rank {collection.name}")
    rankers = {path.name: load_model(path) for path in trained[source.name]}
    chosen = written_mixing(folder, recipe.blend, collection, list(rankers))
    return Ensemble(source, rankers, recipe.blend, chosen)


def _trained_on(folder: Path, config: dict[str, Any], wanted: Collection | None) -> Collection:
    """Return the collection that a model ranks; of one trained on several, the wanted one."""
    if "collections" not in config:
        return collection_named(config["collection"])
    if wanted is None:
        raise PipelineError(f"{folder}: was trained on several collections; pass --collection")
    same_kind = wanted.kind == collection_named(config["collections"][0]).kind
    return wanted if same_kind else collection_named(config["collections"][0])


def _trained(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if is_done(path))
