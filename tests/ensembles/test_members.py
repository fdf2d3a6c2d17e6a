"""Whose models rank a collection that has nothing to learn from: the documented order."""

import pytest

from data.tree import COLLECTIONS, Collection, collection_named
from ensembles.members import Source, choose_source

ORDER = {
    "tile:xla": [],
    "layout:xla:default": ["layout:xla:random", "layout:nlp:default", "layout:nlp:random"],
    "layout:xla:random": ["layout:xla:default", "layout:nlp:random", "layout:nlp:default"],
    "layout:nlp:default": ["layout:nlp:random", "layout:xla:default", "layout:xla:random"],
    "layout:nlp:random": ["layout:nlp:default", "layout:xla:random", "layout:xla:default"],
}


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_own_models_rank_else_the_nearest_siblings_else_a_heuristic(collection: Collection) -> None:
    name = collection.name
    assert choose_source(collection, set(ORDER), {}) == Source(collection, None)
    for place, expected in enumerate(ORDER[name]):
        trainable = {*ORDER[name][place:], "tile:xla"}
        source = choose_source(collection, trainable, {name: "it is noise"})
        assert source == Source(collection_named(expected), "it is noise")
    strangers = {"tile:xla"} if name.startswith("layout") else set(ORDER) - {"tile:xla"}
    for trainable in (strangers, set()):
        source = choose_source(collection, trainable, {})
        assert source.collection is None
        assert source.reason == (
            "no train split; and no sibling collection has anything to learn from"
        )
