"""Whose models rank a collection that has nothing to learn from: the documented order."""

import pytest

from data.tree import COLLECTIONS, collection_named
from ensembles.members import choose_source, siblings

ORDER = {
    "tile:xla": [],
    "layout:xla:default": ["layout:xla:random", "layout:nlp:default", "layout:nlp:random"],
    "layout:xla:random": ["layout:xla:default", "layout:nlp:random", "layout:nlp:default"],
    "layout:nlp:default": ["layout:nlp:random", "layout:xla:default", "layout:xla:random"],
    "layout:nlp:random": ["layout:nlp:default", "layout:xla:random", "layout:xla:default"],
}


def test_every_collection_is_in_the_table() -> None:
    assert list(ORDER) == [collection.name for collection in COLLECTIONS]


@pytest.mark.parametrize("name", ORDER)
def test_siblings_come_nearest_first(name: str) -> None:
    assert [sibling.name for sibling in siblings(collection_named(name))] == ORDER[name]


@pytest.mark.parametrize("name", ORDER)
def test_a_collections_own_train_split_goes_first_and_needs_no_reason(name: str) -> None:
    source = choose_source(collection_named(name), set(ORDER), {})
    assert source.collection == collection_named(name)
    assert source.reason is None


@pytest.mark.parametrize("name", ORDER)
def test_without_it_the_nearest_trainable_sibling_is_taken_and_the_reason_given(name: str) -> None:
    for place, expected in enumerate(ORDER[name]):
        trainable = {*ORDER[name][place:], "tile:xla"}
        source = choose_source(collection_named(name), trainable, {name: "it is noise"})
        assert source.collection == collection_named(expected)
        assert source.reason == "it is noise"


@pytest.mark.parametrize("name", ORDER)
def test_without_any_sibling_a_heuristic_is_taken_and_said(name: str) -> None:
    strangers = {"tile:xla"} if name.startswith("layout") else set(ORDER) - {"tile:xla"}
    for trainable in (strangers, set()):
        source = choose_source(collection_named(name), trainable, {})
        assert source.collection is None
        assert source.reason is not None
        assert "no train split" in source.reason
        assert "no sibling collection has anything to learn from" in source.reason
