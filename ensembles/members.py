"""The models of an ensemble: each model of the recipe with each seed, each in its own folder."""

from dataclasses import dataclass
from pathlib import Path

from data.tree import Collection
from ensembles.sources import Source
from models.config.recipe import Recipe
from models.train import load_model
from models.training.jobs import Ranker
from models.trees.baselines import BASELINES


@dataclass(frozen=True)
class Member:
    """One model of an ensemble.

    Attributes:
        model: its name in the registry, or "heuristic".
        seed: what its training started from.
        folder: its run folder.
        kind: "layout" or "tile".
    """

    model: str
    seed: int
    folder: Path
    kind: str

    @property
    def name(self) -> str:
        """Return the member's name in folders, blends and reports."""
        return f"{self.model}-seed{self.seed}"

    def load(self) -> Ranker:
        """Load the trained model, or the heuristic that needs no training.

        Raises:
            PipelineError: its training has not ended, or its files are damaged.
        """
        return BASELINES[self.kind] if self.model == "heuristic" else load_model(self.folder)


def members_of(
    recipe: Recipe, collection: Collection, out: Path, source: Source | None = None
) -> list[Member]:
    """List the members trained on `collection`; the heuristic alone if `source` is one."""
    if source is not None and source.collection is None:
        return [Member("heuristic", 0, out, collection.kind)]
    folder = out / "models" / collection.slug
    return [
        Member(model, seed, folder / f"{model}-seed{seed}", collection.kind)
        for model in recipe.models_of(collection.kind)
        for seed in recipe.seeds
    ]
