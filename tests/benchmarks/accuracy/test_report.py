"""The page comes from the cells alone; figures against figures by hand."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.__main__ import main
from benchmarks.accuracy.report import (
    choice_rows,
    difference,
    estimate,
    estimate_of,
    first_measured,
    read_cells,
    revision_of,
    table_of,
    values,
    write_report,
)
from benchmarks.accuracy.tasks import TASKS
from common.files import write_text
from common.reproducibility import revision

FAMILIES = ["b", "a", "b", "c", "a", "b"]


def cell(task: str, name: str, seed: int, taus: list[float], **more: Any) -> dict[str, Any]:
    slowdowns = ("slowdown@1", "slowdown@5", "slowdown@10", "diversified_slowdown@5")
    metrics = ("kendall_tau", "opa", "tile_score", *slowdowns)
    graphs = {
        f"g{i}": {
            "split": "valid",
            "family": FAMILIES[i],
            "again_tau": None,
            "noise": {"n_repeated": 20, "tau": 0.81, "best_tau": 0.9},
            "rank_cpu_s": 0.5,
            **dict.fromkeys(metrics, tau),
        }
        for i, tau in enumerate(taus)
    }
    facts = {"revision": "abc", "environment": {"system": "Linux"}, "train_cpu_s": 4.0}
    known = {"task": task, "candidate": name, "seed": seed, "graphs": graphs}
    return {**known, **facts, **more}


def write_cell(folder: Path, task: str, name: str, taus: list[float], seed: int = 0) -> None:
    path = folder / "cells" / f"{task}--{name}--{seed}.json"
    write_text(path, json.dumps(cell(task, name, seed, taus)))


def test_one_graph_has_students_interval_over_seeds() -> None:
    found = estimate(np.array([[0.5, 0.6, 0.7, 0.8, 0.4]]), ["a"])
    half = 2.7764451 * math.sqrt(sum((v - 0.6) ** 2 for v in (0.5, 0.6, 0.7, 0.8, 0.4)) / 4 / 5)
    assert (found.low, found.high) == pytest.approx((0.6 - half, 0.6 + half))
    assert math.isnan(estimate(np.ones((1, 1)), ["a"]).low)
    assert math.isnan(estimate(np.ones((2, 1)), ["a", "a"]).low)


@pytest.mark.parametrize(
    ("metric", "values_by_seed", "expected"),
    [
        ("slowdown@1", (1, 1, 1.9), (1.3, 1.0, 2.5908)),
        ("kendall_tau", (1, 1, 0.7), (0.9, 0.4697, 1.0)),
    ],
)
def test_interval_ends_at_the_perfect_value(
    metric: str, values_by_seed: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    cells = [
        cell("unet3d-all", "baseline_gcn", seed, [own]) for seed, own in enumerate(values_by_seed)
    ]
    found = estimate_of(cells, metric)
    assert (found.mean, found.low, found.high) == pytest.approx(expected, abs=1e-4)


def test_differences_are_paired_by_seed_and_graph() -> None:
    default = [cell("layouts", "default", seed, [0.1 * seed, 0.5]) for seed in (0, 1, 2)]
    other = [cell("layouts", "baseline_gcn", seed, [0.1 * seed, 0.4]) for seed in (2, 1)]
    found = difference(default, other, "kendall_tau")
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((0.05, 0.0, 0.1))
    assert difference(other, [], "kendall_tau") is None
    table, families = values([*other, *default[1:]], "kendall_tau")
    assert families == ["b", "a"] and table.shape == (2, 4)
    part = table_of("layouts", {"baseline_gcn": other, "default": default})
    gcn, top = part["rows"]
    leads = ["+0.050 [+0.000, +0.100]", "+0.0500 [+0.0000, +0.1000]"]
    assert gcn == ["baseline_gcn", *leads, "0.275", "0.2750", "0.2750"]
    assert top[:3] == ["default", "–", "–"]
    assert len(gcn) == len(part["header"])
    (intervals, _) = part["intervals"]
    assert intervals[:2] == ["baseline_gcn", "2"] and intervals[2].startswith("0.275 [")
    assert intervals[-2:] == ["4.0", "0.50"] and len(intervals) == len(part["interval_header"])


def test_folders_and_models_are_compared_by_seed_and_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, base = tmp_path / "mine", tmp_path / "base"
    for folder, name, taus in (
        (mine, "layout_linear", [0.5, 0.7, 0.6]),
        (mine, "my_pkg:Mine", [0.6, 0.8, 0.7]),
        (base, "layout_linear", [0.4, 0.6, 0.5]),
        (base, "layout_boosting", [0.4, 0.6, 0.5]),
    ):
        write_cell(folder, "layouts", name, taus)
    loss = "**-0.100 [-0.100, -0.100]**"
    for against, pair in (
        (str(base), f"layout_linear of {base} minus layout_linear"),
        ("layout_linear", "layout_linear minus my_pkg:Mine"),
    ):
        main(["--out", str(mine), "--against", against])
        (line,) = capsys.readouterr().out.splitlines()  # no other model is in both
        assert line.startswith(f"layouts, {pair}: tau {loss}, OPA {loss}, slowdown@1 **-0.1000 [")
    with pytest.raises(SystemExit, match="1"):
        main(["--out", str(mine), "--against", "gat"])
    assert "--against gat: has no task and seed in common with" in capsys.readouterr().err


@pytest.mark.parametrize("task", ["layouts", "tiles"])
def test_page_comes_from_the_cells_alone(task: str, tmp_path: Path) -> None:
    trees = f"{task.removesuffix('s')}_boosting"
    for place, name in enumerate((trees, "default")):
        for seed in (0, 1):
            taus = [0.1 * place + 0.01 * graph + 0.002 * seed for graph in range(6)]
            write_cell(tmp_path, task, name, taus, seed)
    cells = read_cells(tmp_path)
    pages = []
    for order in (cells, list(reversed(cells))):
        write_report(order, tmp_path)
        pages.append((tmp_path / "accuracy.md").read_text())
    assert pages[0] == pages[1]
    # The cells above keep "abc", because git does not know it.
    assert revision_of([{"revision": "HEAD"}]) == revision()
    lines = pages[0].splitlines()
    assert f"Held out: graphs 6, families 3. Revision {cells[0]['revision']}." in lines
    assert "agree to tau 0.810.\n" in pages[0] and " and 0.900." in pages[0]
    rows = [line for line in lines if line.startswith((f"| {trees} |", "| default |"))]
    assert len(rows) == 4 and len({row.count("|") for row in rows}) == 2


def test_page_names_the_keys_that_were_set(tmp_path: Path) -> None:
    keys = ["tile_boosting.num_boost_round=3"]
    changed = cell("tiles", "tile_linear", 0, [0.1, 0.2], set=keys)
    write_report([changed, *(cell(task, "default", 0, [0.1]) for task in TASKS)], tmp_path)
    page = (tmp_path / "accuracy.md").read_text()
    after = ["Models", "Columns", "Limits"]
    assert re.findall(r"\n## (.*)", page) == [*(task.title for task in TASKS.values()), *after]
    assert (
        "**Changed with `--set`:** `tile_linear` with `tile_boosting.num_boost_round=3`.\n" in page
    )


def test_default_recipe_is_shown_by_what_choices_have_seen() -> None:
    chosen_on = first_measured()
    assert len(chosen_on) == 52 and "layout:xla:random:conv_lstm_b2" not in chosen_on
    scores = {"baseline": 0.2, "layout_linear": 0.4, "layout_boosting": 0.5, "default": 0.7}
    found = {name: [cell("layouts", name, 0, [own] * 3)] for name, own in scores.items()}
    names = ("layout:xla:random:plain_b2", "layout:xla:random:mine", sorted(chosen_on)[0])
    for own in found.values():
        graphs = dict(zip(names, own[0]["graphs"].values(), strict=True))
        graphs[names[2]] = {**graphs[names[2]], "split": "test"}
        own[0]["graphs"] = graphs
    assert choice_rows(found) == [
        [group, "1", "0.700", *["0.7000"] * 3, "+0.5000", "+0.3000", "+0.2000"]
        for group in (
            "choices used these (measured first)",
            "labelled, measured later",
            "test split: no choice and no training used these",
        )
    ]


def test_page_needs_cells_of_all_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="1"):
        main(["--out", str(tmp_path), "--report", str(tmp_path)])
    assert "no results; train some first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    write_cell(tmp_path, "tiles", "tile_linear", [0.1])
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path), "--report"])
    assert "tasks are missing; --report FOLDER writes the others" in capsys.readouterr().err
