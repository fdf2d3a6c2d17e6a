"""Intervals against slow references, and a report that comes from the cells alone."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.intervals import estimate, seed_interval
from benchmarks.accuracy.table import paired, read_cells, report, time_to_reach, values
from common.atomic import write_text

FAMILIES = ["b", "a", "b", "c", "a", "b"]


def _cell(contender: str, seed: int, taus: dict[str, float], **more: Any) -> dict[str, Any]:
    graphs = {
        name: {
            "split": "valid" if name == "g0" else "train",
            "family": FAMILIES[int(name[1:])],
            "again_tau": None,
            "noise": {"n_repeated": 20, "tau": 0.81, "best_tau": 0.9},
            "kendall_tau": tau,
            "slowdown@1": 1.5,
            "slowdown@10": 1.25,
            "slowdown@100": 1.0,
        }
        for name, tau in taus.items()
    }
    curve = [
        {"step": 5, "cpu_s": 2.0, "kendall_tau": {name: tau / 2 for name, tau in taus.items()}},
        {"step": 10, "cpu_s": 4.0, "kendall_tau": taus},
    ]
    known = {"contender": contender, "seed": seed, "graphs": graphs, "curve": curve}
    costs = {"cpu_s": 4.0, "wall_s": 5.0, "steps": 10}
    made = {"revision": "abc", "environment": {"system": "Linux"}}
    return {"task": "sample-folds", **known, **costs, **made, **more}


def test_one_graph_has_students_interval_over_seeds() -> None:
    values = np.array([0.5, 0.6, 0.7, 0.8, 0.4])
    found = estimate(values[None], ["a"])
    half = 2.7764451 * math.sqrt(sum((v - 0.6) ** 2 for v in values) / 4) / math.sqrt(5)
    assert (found.low, found.high) == pytest.approx((0.6 - half, 0.6 + half))
    assert math.isnan(seed_interval(values[:1]).low)
    assert math.isnan(estimate(np.ones((2, 1)), ["a", "a"]).low)


def test_differences_are_paired_by_seed_and_graph() -> None:
    ours = [_cell("ours", seed, {"g0": 0.1 * seed, "g1": 0.5}) for seed in (0, 1, 2)]
    other = [_cell("gcn", seed, {"g1": 0.4, "g0": 0.1 * seed}) for seed in (2, 1)]
    one, mine = paired(other, ours)
    assert [cell["seed"] for cell in one] == [cell["seed"] for cell in mine] == [2, 1]
    table, families = values([*one, *mine], "kendall_tau")
    assert families == ["b", "a"] and table.shape == (2, 4)
    lines = report([*ours, *other])
    (row,) = [line for line in lines if line.startswith("| gcn − ours")]
    assert "| 2 | -0.050 [-0.100, +0.000] |" in row
    assert [
        line for line in lines if line.startswith("Tau of the valid split's graphs alone: ")
    ] == [
        "Tau of the valid split's graphs alone: "
        "ours 0.100 [-0.148, 0.348], gcn 0.150 [-0.485, 0.785]."
    ]


def test_time_to_reach_the_references_tau() -> None:
    reference = _cell("reference", 0, {"g0": 0.4}, cpu_s=8.0)
    assert time_to_reach(_cell("ours", 0, {"g0": 0.5}), reference) == 0.5
    assert time_to_reach(_cell("ours", 0, {"g0": 0.9}), reference) == 0.25
    assert time_to_reach(_cell("ours", 0, {"g0": 0.3}), reference) is None
    (row,) = [
        line
        for line in report([_cell("ours", 0, {"g0": 0.5}), reference])
        if line.startswith("| ours") and "of 1" in line
    ]
    assert row == "| ours | 0.250 | 0.500 | 1 of 1 | 0.50 |"


def test_the_report_comes_from_the_cells_alone(tmp_path: Path) -> None:
    cells = [
        _cell(name, seed, {f"g{i}": 0.1 * i + 0.01 * seed for i in range(6)})
        for name in ("boosting", "ours")
        for seed in (0, 1)
    ]
    for cell in cells:
        path = tmp_path / f"{cell['contender']}-{cell['seed']}.json"
        write_text(path, json.dumps(cell))
    lines = report(read_cells(tmp_path))
    assert lines == report(list(reversed(cells)))
    assert "Held out: graphs 6, families 3; intervals over families and seeds." in lines
    assert any("agree to tau 0.810" in line and "0.900" in line for line in lines)
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
