"""The benchmark of a GPU, without one: what is counted, and the page."""

from pathlib import Path

import pytest

from benchmarks import gpu
from pipeline.planning.made_up import Size

SMALL = Size(nodes=300, edges=500, configurable=80, configs=200)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GRAPH", SMALL)
    names = ("cross_config_sage", gpu.PLAIN, "segment_sage", "baseline_gcn", "late_fusion_sage")
    monkeypatch.setattr(gpu, "WORKS", {name: gpu.WORKS[name] for name in names})


@pytest.mark.parametrize("name", [name for name, work in gpu.WORKS.items() if work.goals])
def test_a_step_takes_no_more_than_was_aimed_at(name: str) -> None:
    step, goals = gpu.WORKS[name].step(), dict(gpu.WORKS[name].goals)
    assert step["half_share"] >= goals.pop("half_share", 0)
    assert {key: step[key] for key in goals if step[key] > goals[key]} == {}


@pytest.mark.usefixtures("small")
def test_figures_by_network_and_a_page_that_says_that_there_was_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = gpu.count_all()
    assert list(found) == list(gpu.WORKS)
    for figures in found.values():
        for part in (figures, figures["ranked_chunk"]):
            assert part["kernels"] > 10
            assert {"byte_units", "host_syncs", "half_share"} <= part.keys()
        assert figures["kernels"] > figures["ranked_chunk"]["kernels"]
    ours, plain, *_, tile = found.values()
    assert ours["byte_units"] < plain["byte_units"] and ours["unit_mb"] == plain["unit_mb"] > 0
    assert tile["graphs"] == 32 and tile["unit_mb"] == tile["ranked_chunk"]["unit_mb"]
    monkeypatch.setattr(gpu, "PAGES", tmp_path)
    monkeypatch.setattr(gpu, "count_all", lambda: found)
    gpu.main(["--counts"])
    text = (tmp_path / "gpu.md").read_text()
    assert "| baseline_gcn | 8 | " in text
    assert "| segment_sage | 1 | " in text
    assert " | 0 (<= 0) | " in text
    assert "nothing here was timed on one" in text
