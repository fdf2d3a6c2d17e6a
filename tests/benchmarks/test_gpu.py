"""The benchmark of a GPU, without one: what is counted, and the page."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu
from pipeline.planning.made_up import Size

SMALL = Size(nodes=300, edges=500, configurable=80, configs=200)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "GRAPH", SMALL)


@pytest.mark.parametrize("name", [name for name, work in gpu.WORKS.items() if work.goals])
def test_a_step_takes_no_more_than_was_aimed_at(name: str) -> None:
    step, goals = gpu.WORKS[name].step(), dict(gpu.WORKS[name].goals)
    assert step["half_share"] >= goals.pop("half_share", 0)
    assert {key: step[key] for key in goals if step[key] > goals[key]} == {}


@pytest.mark.usefixtures("small")
def test_figures_by_network_as_json(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    names = ["cross_config_sage", gpu.PLAIN, "late_fusion_sage"]
    settings = ("cross_config_sage.hidden=32", "late_fusion_sage.kernels_per_step=2")
    words = [word for setting in settings for word in ("--set", setting)]
    gpu.main([*names, "--counts", "--json", str(path), *words])
    found = json.loads(path.read_text())
    assert list(found) == names
    for figures in found.values():
        for part in (figures, figures["ranked_chunk"]):
            assert part["kernels"] > 10
            assert {"byte_units", "host_syncs", "half_share"} <= part.keys()
        assert figures["kernels"] > figures["ranked_chunk"]["kernels"]
    ours, plain, tile = found.values()
    assert ours["byte_units"] < plain["byte_units"]
    assert ours["unit_mb"] == plain["unit_mb"] == round(4 * 300 * 128 * 32 / 1e6, 1)
    assert tile["graphs"] == 2
    assert tile["unit_mb"] == tile["ranked_chunk"]["unit_mb"] == round(4 * 40 * 128 * 128 / 1e6, 1)


@pytest.mark.usefixtures("small")
def test_the_page_says_that_there_was_no_gpu() -> None:
    found = gpu.count_all(names=["cross_config_sage", "segment_sage", "baseline_gcn"])
    text = "\n".join(gpu.report(found, {}))
    assert "| baseline_gcn | 8 | " in text
    assert "| segment_sage | 1 | " in text
    assert " | 0 (<= 0) | " in text
    assert "nothing here was timed on one" in text


def test_an_unknown_network_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["cross_config_sag"])
    assert "expected some of cross_config_sage" in capsys.readouterr().err
