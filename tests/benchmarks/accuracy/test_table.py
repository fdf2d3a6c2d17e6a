"""Reports and ladders come from the cells alone; their figures against figures by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.ladder import LADDERS, LAYOUT_LADDERS, rungs_of
from benchmarks.accuracy.table import difference, estimate, read_cells, report, values
from common.atomic import write_text

FAMILIES = ["b", "a", "b", "c", "a", "b"]
UNET3D = "unet3d-all"


def cell(task: str, contender: str, seed: int, taus: list[float], **more: Any) -> dict[str, Any]:
    metrics = ("kendall_tau", "tile_score", "slowdown@1", "slowdown@5", "slowdown@10")
    errors = ("top1_error", "top5_error", "top10_error")
    graphs = {
        f"g{i}": {
            "split": "valid",
            "family": FAMILIES[i],
            "again_tau": None,
            "noise": {"n_repeated": 20, "tau": 0.81, "best_tau": 0.9},
            **dict.fromkeys((*metrics, *errors), tau),
        }
        for i, tau in enumerate(taus)
    }
    made = {"revision": "abc", "environment": {"system": "Linux"}, "cpu_s": 4.0, "wall_s": 5.0}
    known = {"task": task, "contender": contender, "seed": seed, "graphs": graphs}
    return {**known, **made, **more}


def write_cells(folder: Path, task: str, contenders: Any, n_graphs: int = 6) -> None:
    for place, name in enumerate(contenders):
        for seed in (0, 1):
            taus = [0.1 * place + 0.01 * graph + 0.002 * seed for graph in range(n_graphs)]
            path = folder / "cells" / f"{task}--{name}--{seed}.json"
            write_text(path, json.dumps(cell(task, name, seed, taus)))


def test_one_graph_has_students_interval_over_seeds() -> None:
    found = estimate(np.array([[0.5, 0.6, 0.7, 0.8, 0.4]]), ["a"])
    half = 2.7764451 * math.sqrt(sum((v - 0.6) ** 2 for v in (0.5, 0.6, 0.7, 0.8, 0.4)) / 4 / 5)
    assert (found.low, found.high) == pytest.approx((0.6 - half, 0.6 + half))
    assert math.isnan(estimate(np.ones((1, 1)), ["a"]).low)
    assert math.isnan(estimate(np.ones((2, 1)), ["a", "a"]).low)


def test_differences_are_paired_by_seed_and_graph() -> None:
    ours = [cell("sample", "ours", seed, [0.1 * seed, 0.5]) for seed in (0, 1, 2)]
    other = [cell("sample", "gcn", seed, [0.1 * seed, 0.4]) for seed in (2, 1)]
    found = difference(other, ours, "kendall_tau")
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((-0.05, -0.1, 0.0))
    assert difference(other, [], "kendall_tau") is None
    table, families = values([*other, *ours[1:]], "kendall_tau")
    assert families == ["b", "a"] and table.shape == (2, 4)
    text = report("layout", [*ours, *other])
    assert "| gcn − ours |  | -0.050 [-0.100, +0.000] |" in text


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_the_report_comes_from_the_cells_alone(kind: str, tmp_path: Path) -> None:
    write_cells(tmp_path, "sample-folds", ["boosting", "ours"])
    cells = read_cells(tmp_path / "cells")
    text = report(kind, cells)
    assert text == report(kind, list(reversed(cells)))
    lines = text.splitlines()
    assert "Held out: graphs 6, families 3." in lines
    assert "agree to tau 0.810; " in text and " and 0.900." in text
    tables = [line for line in lines if line.startswith("|")]
    assert len(tables) == 5 and len({line.count("|") for line in tables}) == 1


def test_gains_are_paired_and_go_from_rung_to_rung() -> None:
    taus = {"gcn": [0.1, 0.2], "plain": [0.4, 0.3], "blend": [0.5, 0.7]}  # of two seeds
    cells = [
        cell(UNET3D, name, seed, [value])
        for name, by_seed in taus.items()
        for seed, value in enumerate(by_seed)
    ]
    low, middle, top = rungs_of(LAYOUT_LADDERS, cells)
    assert [rung.title for rung in (low, middle, top)] == [
        LAYOUT_LADDERS.rungs[name] for name in taus
    ]
    assert (low.gain, top.to_top) == (None, None)
    assert middle.gain is not None and middle.gain.mean == pytest.approx((0.3 + 0.1) / 2)
    half = 12.706204736 * math.sqrt(0.02) / math.sqrt(2)  # Student's, one degree of freedom
    assert middle.gain.low == pytest.approx(0.2 - half)
    assert top.gain is not None and top.gain.mean == pytest.approx((0.1 + 0.4) / 2)
    assert low.to_top is not None and low.to_top.mean == pytest.approx((0.4 + 0.5) / 2)


def pages_of(kind: str, folder: Path) -> int:
    return main([kind, "--out", str(folder / kind), "--report", str(folder)])


@pytest.mark.parametrize(("kind", "task"), [("layout", "sample-folds"), ("tile", "alexnet")])
def test_ladders_and_pictures_come_from_the_cells(kind: str, task: str, tmp_path: Path) -> None:
    ladders = LADDERS[kind]
    write_cells(tmp_path / kind, task, ladders.rungs)
    write_cells(tmp_path / kind, task, ["linear"])  # on no ladder
    assert pages_of(kind, tmp_path) == 0
    lines = (tmp_path / f"{ladders.page}.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("## ")] == [f"## {ladders.ladders[task]}"]
    rows = [line for line in lines if line.startswith("| ") and "| rung" not in line]
    assert [line.split(" | ")[0] for line in rows] == [f"| {t}" for t in ladders.rungs.values()]
    shown = imread(tmp_path / f"{ladders.page}.png")
    assert shown.shape[1] == 1210 and shown[..., :3].std() > 0.05
    assert rows[0].count("**") == 2  # no gain, but below the top
    assert "**+0.1" in rows[1]


def test_a_ladder_without_cells_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pages_of("tile", tmp_path) == 1
    assert "tile/cells: no results; run without --report first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    write_cells(tmp_path / "tile", "sample", ["linear"])
    assert pages_of("tile", tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'tile_accuracy.md'}\n"
