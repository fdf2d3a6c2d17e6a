"""Sections of the page on speed hold what was measured, on sizes that take no time."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed import (
    layout_model,
    segment_memory,
    statistics_cost,
    tile_inference,
    winning_model,
)
from benchmarks.speed.measuring import in_turn, peak_mib
from data.read import read_tile
from data.synthetic import GraphSize
from models.config.recipe import load_recipe

TINY = layout_model.Setting(60, 8, hidden=16)
SMALL = GraphSize(1_500, 60, 40)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_work_takes_turns_after_a_round_that_does_not_count() -> None:
    done: list[str] = []
    work = {name: (lambda name=name: done.append(name)) for name in "ab"}
    assert [len(each) for each in in_turn(work, 2, warm_up=True).values()] == [2, 2]
    assert "".join(done) == "ababab"


def test_the_peak_is_what_the_work_adds() -> None:
    added = peak_mib("import numpy as np", "np.ones(8 << 20)")
    assert 64 <= added < 80


def test_layout_models_are_compared_in_time_memory_and_results() -> None:
    lines = layout_model.report([TINY, layout_model.Setting(60, 8, 16, True, "bfloat16")])
    exact, half = map(cells, lines[-2:])
    assert len({line.count("|") for line in lines[-4:]}) == 1
    assert float(exact[-3]) < 1e-4 and float(exact[-2]) < 1e-3
    assert float(exact[-3]) < float(half[-3]) < 0.1
    assert half[-2:] == ["", ""] and float(exact[11]) > 0


def test_the_winning_model_has_seconds_and_ratios() -> None:
    header, _, line = winning_model.report([(40, 8)], n_scored=12)[-3:]
    assert line.count("|") == header.count("|")
    assert all(float(cell) >= 0 for cell in cells(line)[1:])


def test_statistics_have_a_line_per_set() -> None:
    plain, every = map(cells, statistics_cost.report(GraphSize(400, 20, 300))[-2:])
    assert (plain[0], every[0]) == ("plain", "all")
    assert int(plain[1]) < int(every[1])
    assert all(0 <= float(row[3]) < statistics_cost.GOAL_MIB for row in (plain, every))


@pytest.mark.slow
def test_segments_have_a_line_for_each_size() -> None:
    line = cells(segment_memory.report((SMALL,))[-1])
    assert line[:2] == ["1,500", "60"]
    libraries, train, predict = map(int, line[2:5])
    assert 0 < libraries < train <= predict
    assert min(map(float, line[5:])) > 0


def test_inference_is_timed_on_kernels_of_the_size_asked_for(tmp_path: Path) -> None:
    small = read_tile(tile_inference.train_files()[-1])
    kernel = read_tile(tile_inference.write_kernel(tmp_path, small, 50))
    assert abs(kernel.n_nodes - tile_inference.N_NODES) <= small.n_nodes / 2
    assert kernel.n_configs == 50 and not kernel.is_labelled
    assert len(kernel.edge_index) * small.n_nodes == len(small.edge_index) * kernel.n_nodes
    bounds = kernel.config_feat.reshape(50, 3, 8)
    np.testing.assert_allclose(bounds[:, :, 7], bounds[:, :, :6].prod(axis=2))
    recipe = load_recipe("smoke", ["tile_boosting.num_boost_round=2"])
    files = [kernel.file] * 2
    assert tile_inference.seconds_of("tile_boosting", recipe, files, tmp_path) > 0
