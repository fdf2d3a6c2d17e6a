"""The models of an ensemble, and which of them rank a collection that has nothing to learn from.

The choice, in order: the collection's own train split; else a sibling layout collection with the
same source and the other search (the very same programs), with the other source and the same
search, with both different; else a heuristic that needs no training. Never silently: the report
names what was taken, and why.
"""

from collections.abc import Collection as Container
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from data.tree import COLLECTIONS, Collection
from models.config.recipe import Recipe
from models.registry import Ranker
from models.trees.linear import BASELINES, FLOORS

HEURISTIC, FLOOR = "heuristic", "floor"


@dataclass(frozen=True)
class Member:
    """One model of an ensemble."""

    model: str  # its name in the registry, or HEURISTIC or FLOOR, which need no training
    seed: int
    folder: Path  # where the trained model lies; nothing is there of what needs none
    kind: str

    @property
    def name(self) -> str:
        return f"{self.model}-seed{self.seed}"

    def load(self) -> Ranker:
        """Load the trained model, or what needs no training.

        Raises:
            PipelineError: its training has not ended, or its files are damaged.
        """
        from models.train import load_model

        untrained = {HEURISTIC: BASELINES, FLOOR: FLOORS}.get(self.model)
        return untrained[self.kind] if untrained else load_model(self.folder)


@dataclass(frozen=True)
class Source:
    """Where a collection's models come from."""

    collection: Collection | None  # whose train split they learned from; None for a heuristic
    reason: str | None = None  # why it is not the collection's own; None if it is


def choose_source(
    collection: Collection, trainable: Container[str], reasons: Mapping[str, str]
) -> Source:
    """Choose whose models rank `collection`.

    Args:
        trainable: names of collections with at least one graph to learn from.
        reasons: for the others, why there is nothing to learn from.
    """
    if collection.name in trainable:
        return Source(collection)
    reason = reasons.get(collection.name, "no train split")
    parts = collection.name.split(":")

    def distance(other: Collection) -> tuple[bool, ...]:
        return tuple(a != b for a, b in zip(parts, other.name.split(":"), strict=True))

    siblings = [c for c in COLLECTIONS if c.kind == collection.kind and c.name in trainable]
    if siblings:
        return Source(min(siblings, key=distance), reason)
    return Source(None, f"{reason}; and no sibling collection has anything to learn from")


def members_of(
    recipe: Recipe, collection: Collection, out: Path, source: Source | None = None
) -> list[Member]:
    """List the members that learned from `collection`; the heuristic alone if `source` is one."""
    if source is not None and source.collection is None:
        return [Member(HEURISTIC, 0, out / "models" / HEURISTIC, collection.kind)]
    folder = out / "models" / recipe.learned_as(collection).slug
    return [
        Member(model, seed, folder / f"{model}-seed{seed}", collection.kind)
        for model in recipe.models_of(collection.kind)
        for seed in recipe.seeds
    ]
