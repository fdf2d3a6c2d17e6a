"""The embedded names are those of the published lists."""

import gzip
from pathlib import Path

import pytest

from data.fetch.parts import PUBLISHED_GRAPHS
from data.official.names import NAMES, official_parts, read_names
from data.official.write_names import collect_names, write_names
from data.tree import find_graphs
from tests.real_data import REAL, requires_real_data


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


@requires_real_data
def test_every_real_file_has_an_official_name() -> None:
    for file in find_graphs(REAL):
        assert file.name in official_parts()[f"{file.collection.name}/{file.split}"].names


def test_lists_that_were_written_are_read_back(tmp_path: Path) -> None:
    stats = tmp_path / "stats"
    stats.mkdir()
    (stats / "layout_file_stats.csv").write_text(
        "collection,split,graph,n_nodes\nlayout:xla:default,train,b.2x2,7\n"
        "layout:xla:default,train,a,7\nlayout:xla:default,test,0f,7\n"
    )
    (stats / "tile_train_names.txt").write_text("k_1\nk_-2\n")
    (stats / "tile_valid_names.txt").write_text("v_3\n")
    (tmp_path / "sample_submission.csv").write_text(
        "ID,TopConfigs\ntile:xla:9e,0;1\nlayout:xla:default:0f,0;1\nlayout:nlp:random:1d,0;1\n"
    )
    write_names(tmp_path, tmp_path / "names.txt.gz")
    assert read_names(tmp_path / "names.txt.gz") == {
        "layout:nlp:random/test": {"1d"},
        "layout:xla:default/test": {"0f"},
        "layout:xla:default/train": {"a", "b.2x2"},
        "tile:xla/test": {"9e"},
        "tile:xla/train": {"k_-2", "k_1"},
        "tile:xla/valid": {"v_3"},
    }
    before = (tmp_path / "names.txt.gz").read_bytes()
    write_names(tmp_path, tmp_path / "names.txt.gz")
    assert (tmp_path / "names.txt.gz").read_bytes() == before


@requires_real_data
def test_the_embedded_lists_are_those_of_the_published_ones() -> None:
    if not (REAL / "stats" / "layout_file_stats.csv").is_file():
        pytest.skip(f"{REAL} has no stats/layout_file_stats.csv")
    expected = {part: frozenset(names) for part, names in collect_names(REAL).items()}
    assert read_names(NAMES) == expected
    assert b"\0" not in gzip.decompress(NAMES.read_bytes())
