"""Sections of the page on speed hold what was measured, on sizes that take no time."""

from pathlib import Path

import pytest

from benchmarks.speed import (
    layout_model,
    packing,
    pyg_loader,
    segment_memory,
    stages,
    workers,
)
from benchmarks.speed.measuring import TreeCost, in_turn, peak_mib
from benchmarks.speed.packing import STEPS, cost_rows
from data.synthetic.plans import GraphSize

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


def test_each_stage_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (GraphSize(150, 6, 80), GraphSize(200, 8, 90))
    for name in ("MORE_CONFIGS", "MORE_NODES"):
        monkeypatch.setattr(stages, name, sizes)
    text = stages.report()
    assert text.count("| Kendall tau | ") == text.count("| GNN training step, 64 configs | ") == 2
    assert "| stage | 150 | 200 | exponent |" in text


@pytest.mark.slow
def test_layout_models_are_compared_in_time_memory_and_results() -> None:
    lines = layout_model.report([layout_model.Setting(60, 8, hidden=16)]).splitlines()
    ours, plain, winning = map(cells, lines[-3:])
    assert (ours[1], plain[1], winning[1]) == ("cross_config_sage", "plain PyG", "tgraph")
    assert float(plain[-2]) < 1e-4 and float(plain[-1]) < 1e-3
    for row in (ours, plain, winning):
        assert len(row) == len(layout_model.HEADER)
        assert min(float(cell.replace(",", "")) for cell in row[2:8]) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("network", segment_memory.NETWORKS)
def test_each_network_trains_and_ranks_a_graph(network: str) -> None:
    row = segment_memory.line(SMALL, network, segment_memory.measure(SMALL, network))
    assert row[:3] == ["1,500", "60", network]
    libraries, train, predict = map(int, row[3:6])
    assert 0 < libraries < train <= predict
    assert min(float(cell.replace(",", "")) for cell in row[6:]) > 0


def test_ratios_compare_the_best_seconds_with_the_best() -> None:
    seconds = {"inflate": (1.0, 2.0, 9.0), "zipfile": (3.0,), "pack": (1.5, 2.0, 2.0)}
    costs = {name: [TreeCost(cpu + 1, cpu, 1.0) for cpu in cpus] for name, cpus in seconds.items()}
    assert cost_rows(costs)[-1][1:] == ["2.50", "1.25", "0.62", "1.50", "1.50", "0.50", "1"]


def test_packing_is_measured_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ROUNDS", 1)
    lines = packing.report([GraphSize(300, 10, 20)]).splitlines()
    assert "300 nodes, 10 configurable, 20 configs:" in lines
    assert all(sum(f"| {label} |" in line for line in lines) == 1 for label, _ in STEPS.values())


@pytest.mark.slow
def test_workers_end_with_the_bytes_of_one(tiny_tree: Path) -> None:
    *_, one, many, _, told = workers.report(1, tiny_tree, "smoke").splitlines()
    for line, name in ((one, "--workers 1"), (many, "default")):
        assert cells(line)[0] == name and min(map(float, cells(line)[1:])) > 0
    assert told.startswith("The default takes ") and told.endswith("are the same bytes.")


def test_each_way_to_read_configs_has_a_line(tiny_tree: Path) -> None:
    lines = pyg_loader.measure_loader("tiny", tiny_tree, None, 1)
    ways = ["the pipeline", "one by one", "8 a batch", "32 a batch", "8 a batch, drawn already"]
    assert [line[0] for line in lines] == [f"tiny, {way}" for way in ways]
    assert lines[0][-1] == "1.00" and all(float(line[-1]) > 0 for line in lines)
