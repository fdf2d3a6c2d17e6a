"""Slowdown curves and rank points against the plain metric, config by config."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.errors import PipelineError
from common.metrics import slowdown_at_k
from submissions.labels import Labels
from submissions.report.curves import (
    CURVE_PICKS,
    POINTS_PER_GRAPH,
    rank_points,
    read_ranks,
    slowdown_curve,
    write_ranks,
)


def test_a_curve_is_the_mean_slowdown_at_each_k() -> None:
    rng = np.random.default_rng(0)
    sizes = (3, 40, 250)
    runtimes = [rng.integers(10, 1000, size).astype(np.float64) for size in sizes]
    rankings = [rng.permutation(size) for size in sizes]
    curve = slowdown_curve(rankings, runtimes)
    for value, k in zip(curve, CURVE_PICKS, strict=True):
        plain = [slowdown_at_k(*pair, k) for pair in zip(rankings, runtimes, strict=True)]
        assert value == pytest.approx(np.mean(plain), abs=1e-6)


def test_points_hold_first_and_last_config_and_no_more_than_a_picture_shows() -> None:
    rng = np.random.default_rng(0)
    runtime, ranking = rng.permutation(5000) + 100, rng.permutation(5000)
    points = rank_points("layout:xla:default", "g", ranking, Labels(runtime))
    ranks = points["rank"].to_list()
    assert (len(ranks), ranks[0], ranks[-1]) == (POINTS_PER_GRAPH, 0, 4999)
    assert np.ptp(np.diff(ranks)) <= 1
    expected = runtime[ranking[ranks]] / 100
    assert points["slowdown"].to_numpy() == pytest.approx(expected)


def test_a_small_graph_keeps_every_config_and_tiles_are_normalised() -> None:
    labels = Labels(np.array([30, 20]), np.array([1, 2]))
    points = rank_points("tile:xla", "g", np.array([1, 0]), labels)
    assert points["slowdown"].to_list() == [1, 3]


def test_ranks_are_read_as_written_and_damage_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ranks.parquet"
    assert read_ranks(path) is None
    points = rank_points("tile:xla", "g", np.arange(4), Labels(np.arange(4) + 1))
    write_ranks(path, [points, points])
    found = read_ranks(path)
    assert found is not None
    assert found.equals(pl.concat([points, points]))
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(PipelineError, match=r"ranks.parquet: has columns a; expected collection"):
        read_ranks(path)
    path.write_bytes(b"PAR1 not a parquet file")
    with pytest.raises(PipelineError, match=r"ranks.parquet: cannot be read"):
        read_ranks(path)
