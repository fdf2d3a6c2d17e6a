"""Each step of packing is measured in a process of its own, and has a row."""

from pathlib import Path

import pytest

from benchmarks.speed import packing
from benchmarks.speed.measuring import TreeCost
from benchmarks.speed.packing import STEPS, cost_table, over_inflating, section
from data.synthetic import GraphSize


def test_ratios_compare_the_best_seconds_with_the_best() -> None:
    seconds = {"inflate": (1.0, 2.0, 9.0), "pack": (1.5, 2.0, 2.0)}
    costs = {name: [TreeCost(cpu + 1, cpu, 1.0) for cpu in cpus] for name, cpus in seconds.items()}
    row = cost_table(costs)[-1]
    assert "| 2.50 | 3.00 | 1.25 | 1.50 | 2.00 | 1.50 |" in row
    wall, cpu = over_inflating(costs)
    assert "1.25 times the wall seconds of inflating (medians: 1.00;" in wall
    assert "1.50 times the CPU seconds of inflating (medians: 1.00;" in cpu


def test_the_section_is_measured_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ROUNDS", 1)
    lines = section(tmp_path, GraphSize(300, 10, 20))
    assert lines[0].startswith("300 nodes, 10 configurable, 20 configs")
    assert all(sum(f"| {label} |" in line for line in lines) == 1 for label, _ in STEPS.values())
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
