"""Slowdown curves and rank points against the plain metric, config by config; the overview."""

import struct
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.metrics import slowdown_at_k
from data.labels import Labels
from submissions.report import charts
from submissions.report.charts import (
    CURVE_PICKS,
    DPI,
    FIRST_POINTS,
    POINTS_PER_GRAPH,
    SIZE_INCHES,
    rank_points,
    slowdown_curve,
    write_overview,
)
from submissions.score import score_submission
from tests.submissions.pages import illustrated_report


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
    fastest = int(runtime[ranking].argmin())
    assert set(range(FIRST_POINTS)) | {fastest, 4999} <= set(ranks)
    assert POINTS_PER_GRAPH <= len(ranks) <= POINTS_PER_GRAPH + FIRST_POINTS + 1
    assert np.diff(ranks).max() == np.ceil(4999 / (POINTS_PER_GRAPH - 1))
    assert points["config"].to_list() == ranking[ranks].tolist()
    assert points["runtime_ns"].to_list() == runtime[ranking[ranks]].tolist()
    expected = runtime[ranking[ranks]] / 100
    assert points["slowdown"].to_numpy() == pytest.approx(expected)


def test_points_of_a_tile_are_normalised_and_name_rows_and_what_members_think() -> None:
    labels = Labels(np.array([30, 20]), np.array([1, 2]))
    scored = [pl.DataFrame({"config": [7, 9], "score": score}) for score in ([0, 1], [0.5, 2])]
    points = rank_points("tile:xla", "g", np.array([1, 0]), labels, scored)
    assert points["slowdown"].to_list() == [1, 3]
    assert points["config"].to_list() == [9, 7]
    assert points["members"].to_list() == [[2], [0.5]]


def test_the_picture_is_the_same_for_the_same_report_with_scores_or_without(tmp_path: Path) -> None:
    one, two = tmp_path / "1.png", tmp_path / "2.png"
    for report in (illustrated_report()[0], score_submission({}, {})):
        write_overview(report, one)
        write_overview(report, two)
        assert one.read_bytes() == two.read_bytes()
        size = struct.unpack(">II", one.read_bytes()[16:24])
        assert size == tuple(round(inches * DPI) for inches in SIZE_INCHES)


def test_without_plotly_there_is_nothing_to_draw_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    assert charts.library.__wrapped__() == ""
