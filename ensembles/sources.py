"""Which models rank which collection, where a collection has nothing to learn from.

The choice, in order: the collection's own train split; else a sibling layout collection with the
same source and the other search (the very same programs), with the other source and the same
search, with both different; else a heuristic that needs no training. Never silently: the report
names what was taken, and why.
"""

from collections.abc import Collection as Container
from collections.abc import Mapping
from dataclasses import dataclass

from data.tree import COLLECTIONS, Collection


@dataclass(frozen=True)
class Source:
    """Where a collection's models come from.

    Attributes:
        collection: whose train split they learned from; None for a heuristic.
        reason: why it is not the collection's own; None if it is.
    """

    collection: Collection | None
    reason: str | None = None


def choose_source(
    collection: Collection, trainable: Container[str], reasons: Mapping[str, str]
) -> Source:
    """Choose whose models rank `collection`.

    Args:
        collection: the one to rank.
        trainable: names of collections with at least one graph to learn from.
        reasons: for the others, why there is nothing to learn from.
    """
    if collection.name in trainable:
        return Source(collection)
    reason = reasons.get(collection.name, "no train split")
    for sibling in siblings(collection):
        if sibling.name in trainable:
            return Source(sibling, reason)
    return Source(None, f"{reason}; and no sibling collection has anything to learn from")


def siblings(collection: Collection) -> list[Collection]:
    """Return the other collections of the same kind, nearest first."""
    parts = collection.name.split(":")
    others = [c for c in COLLECTIONS if c.kind == collection.kind and c != collection]

    def distance(other: Collection) -> tuple[bool, ...]:
        """Compare source before search: another search shares the very same programs."""
        return tuple(a != b for a, b in zip(parts, other.name.split(":"), strict=True))

    return sorted(others, key=distance)
