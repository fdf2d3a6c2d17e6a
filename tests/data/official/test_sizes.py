"""The published sizes: as many graphs as are published, and as the real table says."""

import os
from pathlib import Path

import pytest

from data.fetch.parts import PUBLISHED_GRAPHS
from data.official.sizes import SIZES, official_sizes, write_sizes
from data.official.write_sizes import PUBLISHED, TEST_CONFIGS, write_from


def test_every_published_part_has_a_size() -> None:
    found = {(part.collection, part.split): part.graphs for part in official_sizes()}
    assert found == {
        (part.collection.name, part.split): count for part, count in PUBLISHED_GRAPHS.items()
    }


def test_the_averages_of_all_splits_are_near_the_published_ones() -> None:
    for collection, (nodes, *_) in PUBLISHED.items():
        parts = [part for part in official_sizes() if part.collection == collection]
        graphs = sum(part.graphs for part in parts)
        mean = sum(part.nodes * part.graphs for part in parts) / graphs
        assert mean == pytest.approx(nodes, rel=0.05)


def test_test_graphs_have_as_many_configs_as_the_competition_says() -> None:
    tests = [p for p in official_sizes() if p.split == "test" and p.collection != "tile:xla"]
    assert {part.configs for part in tests} == {TEST_CONFIGS}


def test_distinct_configs_are_those_that_repeat_none() -> None:
    [part] = [
        p for p in official_sizes() if (p.collection, p.split) == ("layout:nlp:default", "train")
    ]
    assert part.distinct == pytest.approx(part.configs * 0.86)


def test_sizes_are_written_as_they_are_read(tmp_path: Path) -> None:
    write_sizes(official_sizes(), tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == SIZES.read_bytes()


def test_the_table_follows_from_the_statistics_of_real_files(tmp_path: Path) -> None:
    real = os.environ.get("TPUGRAPHS_REAL")
    table = Path(real or "", "stats", "layout_file_stats.csv")
    if not real or not table.exists():
        pytest.skip("TPUGRAPHS_REAL names no folder with stats/layout_file_stats.csv")
    write_from(table, tmp_path / "sizes.csv")
    assert (tmp_path / "sizes.csv").read_bytes() == SIZES.read_bytes()
