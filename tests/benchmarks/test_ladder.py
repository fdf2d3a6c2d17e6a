"""The ladder's rungs against figures by hand, and a page that comes from the cells alone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from benchmarks.accuracy.comparisons import CONTENDERS, TILE_CONTENDERS
from benchmarks.accuracy.ladder import (
    LAYOUT_LADDERS,
    LAYOUT_RUNGS,
    TILE_LADDERS,
    TILE_RUNGS,
    main,
    rungs_of,
)
from benchmarks.accuracy.ladder_picture import draw_rungs
from common.atomic import write_text
from submissions.report.svg import new_figure

SAMPLE, UNET3D = LAYOUT_LADDERS[0], LAYOUT_LADDERS[1]


def cell(task: str, contender: str, seed: int, values: list[float], metric: str) -> dict[str, Any]:
    graphs = {f"g{i}": {"family": f"f{i}", metric: value} for i, value in enumerate(values)}
    made = {"revision": "abc", "environment": {"system": "Linux"}}
    return {"task": task, "contender": contender, "seed": seed, "graphs": graphs, **made}


def test_gains_are_paired_and_go_from_rung_to_rung() -> None:
    values = {"gcn": [0.1, 0.2], "plain": [0.4, 0.3], "blend": [0.5, 0.7]}  # of two seeds
    cells = [
        cell(UNET3D.task, name, seed, [value], "kendall_tau")
        for name, by_seed in values.items()
        for seed, value in enumerate(by_seed)
    ]
    low, middle, top = rungs_of(UNET3D, cells)
    assert [rung.title for rung in (low, middle, top)] == [LAYOUT_RUNGS[name] for name in values]
    assert (low.gain, top.to_top) == (None, None)
    assert middle.gain is not None and middle.gain.mean == pytest.approx((0.3 + 0.1) / 2)
    half = 12.706204736 * math.sqrt(0.02) / math.sqrt(2)  # Student's, one degree of freedom
    assert middle.gain.low == pytest.approx(0.2 - half)
    assert top.gain is not None and top.gain.mean == pytest.approx((0.1 + 0.4) / 2)
    assert low.to_top is not None and low.to_top.mean == pytest.approx((0.4 + 0.5) / 2)


def test_a_rung_with_fewer_seeds_is_compared_by_those_that_both_have() -> None:
    cells = [cell(SAMPLE.task, "gcn", seed, [0.1 * seed] * 3, "kendall_tau") for seed in range(3)]
    cells.append(cell(SAMPLE.task, "blend", 2, [0.5] * 3, "kendall_tau"))
    low, top = rungs_of(SAMPLE, cells)
    assert (low.n_seeds, top.n_seeds) == (3, 1)
    assert low.value.mean == pytest.approx(0.1)
    assert top.gain is not None and top.gain.mean == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("ladders", "known"), [(LAYOUT_LADDERS, CONTENDERS), (TILE_LADDERS, TILE_CONTENDERS)]
)
def test_every_rung_is_a_contender(ladders: Any, known: dict[str, Any]) -> None:
    assert {name for ladder in ladders for name in ladder.rungs} <= set(known)


def write_cells(folder: Path, task: str, rungs: dict[str, str], metric: str) -> None:
    for place, name in enumerate(rungs):
        for seed in (0, 1):
            values = [0.1 * place + 0.01 * graph + 0.002 * seed for graph in range(4)]
            path = folder / "cells" / f"{task}--{name}--{seed}.json"
            write_text(path, json.dumps(cell(task, name, seed, values, metric)))


def pages_of(folder: Path, *, expected: int = 0) -> Path:
    """Write the pages from the cells below a folder; return where they lie."""
    folders = ["--layouts", str(folder / "layouts"), "--tiles", str(folder / "tiles")]
    assert main([*folders, "--out", str(folder)]) == expected
    return folder


def shown_rows(page: Path) -> list[str]:
    lines = page.read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and not line.startswith("| rung")]


def test_pages_and_pictures_come_from_the_cells(tmp_path: Path) -> None:
    write_cells(tmp_path / "layouts", "sample-folds", LAYOUT_RUNGS, "kendall_tau")
    write_cells(tmp_path / "layouts", "sample-folds", {"reference": ""}, "kendall_tau")  # on none
    write_cells(tmp_path / "tiles", "alexnet", TILE_RUNGS, "tile_score")
    pages_of(tmp_path)
    for name, ladder, rungs in (
        ("ladder", LAYOUT_LADDERS[0], LAYOUT_RUNGS),
        ("tile_ladder", TILE_LADDERS[2], TILE_RUNGS),
    ):
        page = tmp_path / f"{name}.md"
        lines = page.read_text().splitlines()
        assert [line for line in lines if line.startswith("## ")] == [f"## {ladder.title}"]
        rows = shown_rows(page)
        assert [line.split(" | ")[0] for line in rows] == [f"| {title}" for title in rungs.values()]
        shown = imread(tmp_path / f"{name}.png")
        assert shown.shape[1] == 1210 and shown[..., :3].std() > 0.05
    rows = shown_rows(tmp_path / "ladder.md")
    assert "| 2 | 0.016 [" in rows[0] and rows[0].count("**") == 2  # no gain, but below the top
    assert "**+0.100 [+0.100, +0.100]**" in rows[1]


def test_an_interval_that_holds_0_is_not_bold(tmp_path: Path) -> None:
    for name, values in {"gcn": [0.3, 0.5], "blend": [0.4, 0.4]}.items():
        for seed in (0, 1):
            made = cell("sample-folds", name, seed, values, "kendall_tau")
            path = tmp_path / "layouts" / "cells" / f"{name}-{seed}.json"
            write_text(path, json.dumps(made))
    page = pages_of(tmp_path) / "ladder.md"
    (row,) = [line for line in page.read_text().splitlines() if line.startswith("| + blend with")]
    assert "+0.000 [-0.100, +0.100]" in row and "**" not in row


def test_a_page_without_cells_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_cells(tmp_path / "tiles", "sample", TILE_RUNGS, "tile_score")
    write_text(tmp_path / "ladder.md", "as before")
    pages_of(tmp_path)
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and "layouts/cells: no results" in said.err
    assert said.out == f"{tmp_path / 'tile_ladder.md'}\n"
    assert (tmp_path / "ladder.md").read_text() == "as before"


def test_without_any_cells_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages_of(tmp_path, expected=1)
    assert capsys.readouterr().err.count("\n") == 2
    assert not list(tmp_path.iterdir())


def test_a_panel_shows_means_and_intervals_top_down() -> None:
    cells = [cell(SAMPLE.task, "gcn", seed, [0.1, 0.3], "kendall_tau") for seed in (0, 1)]
    (rung,) = rungs_of(SAMPLE, cells)
    axes = new_figure((4, 3)).add_axes((0.1, 0.1, 0.8, 0.8))
    draw_rungs(axes, [("first", rung.value), ("second", rung.value)])
    points = [line.get_xdata() for line in axes.lines if line.get_marker() == "o"]
    assert points == [[pytest.approx(0.2)], [pytest.approx(0.2)]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "second"]
    assert axes.yaxis_inverted()
