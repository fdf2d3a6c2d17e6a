"""The embedded names and sizes are those that were published."""

from data.fetch.parts import PUBLISHED_GRAPHS
from data.official.names import NAMES, official_parts, read_names
from data.official.sizes import official_sizes


def test_every_listed_part_holds_as_many_names_as_were_published() -> None:
    listed = read_names(NAMES)
    published = {part.label: count for part, count in PUBLISHED_GRAPHS.items()}
    assert len(listed) == 11
    assert {part: len(names) for part, names in listed.items()} == {
        part: published[part] for part in listed
    }
    assert NAMES.stat().st_size < 100_000


def test_no_graph_is_in_two_splits() -> None:
    parts = official_parts()
    for collection in {part.rpartition("/")[0] for part in parts}:
        splits = [parts[f"{collection}/{split}"].names for split in ("train", "valid", "test")]
        assert sum(map(len, splits)) == len(frozenset().union(*splits))


def test_parts_without_a_list_have_the_names_of_their_siblings() -> None:
    parts = official_parts()
    assert set(parts) == {part.label for part in PUBLISHED_GRAPHS}
    random_train = parts["layout:xla:random/train"]
    assert (random_train.n_graphs, len(random_train.names)) == (69, 70)
    assert not random_train.is_complete
    assert parts["layout:xla:default/train"].names < random_train.names
    assert parts["layout:nlp:default/valid"].is_complete
    assert [part for part, known in parts.items() if not known.is_complete] == [
        "layout:xla:random/train",
        "layout:nlp:default/train",
    ]


def test_every_published_part_has_a_size() -> None:
    found = {(part.collection, part.split): part.graphs for part in official_sizes()}
    assert found == {
        (part.collection.name, part.split): count for part, count in PUBLISHED_GRAPHS.items()
    }
    tests = [p for p in official_sizes() if p.split == "test" and p.collection != "tile:xla"]
    assert {part.configs for part in tests} == {1_000}
