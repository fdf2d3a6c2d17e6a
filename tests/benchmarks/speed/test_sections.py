"""Sections of the page on speed hold what was measured; the plain model and ours are the same."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import speed
from benchmarks.__main__ import SECTIONS
from benchmarks.speed import (
    in_own_process,
    in_turn,
    layout_model,
    packing,
    segment_memory,
    stages,
)
from benchmarks.speed.layout_model import plain_copy, plain_names
from data.graphs.graph import LayoutGraph
from data.synthetic.graphs import GraphSize
from features.scaling import fit_node_scaler
from models.config.networks import CrossConfigSageConfig
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import layout_inputs

SMALL = GraphSize(1_500, 60, 40)


def number(cell: str) -> float:
    return float(cell.strip().replace(",", ""))


def test_every_module_with_a_report_is_a_section() -> None:
    modules = {path.stem: path.read_text() for path in Path(speed.__file__).parent.glob("*.py")}
    has_report = {name for name, text in modules.items() if "\ndef report(" in text}
    assert has_report and has_report <= {*SECTIONS}


def test_work_takes_turns_after_a_round_that_does_not_count() -> None:
    done: list[str] = []
    work = {name: (lambda name=name: done.append(name)) for name in "ab"}
    assert [len(each) for each in in_turn(work, 2).values()] == [2, 2]
    assert "".join(done) == "ababab"


def test_peak_is_what_the_work_adds() -> None:
    imported = "import numpy as np\nfrom common.machine import own_peak_mib"
    work = f"{imported}\nbefore = own_peak_mib()\nheld = np.ones(8 << 20)"
    assert 64 <= in_own_process(work, "own_peak_mib() - before") < 80


@pytest.mark.slow
def test_layout_models_are_compared_in_time_and_memory() -> None:
    rows = layout_model.measure(layout_model.Setting(60, 8, hidden=16))
    assert [row[1] for row in rows] == [*layout_model.NETWORKS]
    for row in rows:
        assert len(row) == len(layout_model.HEADER)
        assert min(map(number, row[2:])) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("network", segment_memory.NETWORKS)
def test_each_network_trains_and_ranks_a_graph(network: str) -> None:
    row = segment_memory.measure(SMALL, network)
    assert row[:3] == ["1,500", "60", network]
    libraries, train, predict, *seconds = map(number, row[3:])
    assert 0 < libraries < train <= predict
    assert min(seconds) > 0


def test_ratios_compare_the_best_seconds_with_the_best() -> None:
    seconds = {"inflate": (1.0, 2.0, 9.0), "zipfile": (3.0,), "pack": (1.5, 2.0, 2.0)}
    costs = {name: np.array([(cpu + 1, cpu, 1.0) for cpu in own]) for name, own in seconds.items()}
    cells = packing.cost_rows(costs)[-1][1:]
    assert cells == ["2.50", "1.25", "0.62", "1.50", "1.50", "0.50", "1"]


def test_packing_is_measured_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ROUNDS", 1)
    lines = packing.report([GraphSize(300, 10, 20)]).splitlines()
    assert "300 nodes, 10 configurable, 20 configs:" in lines
    for label, _ in packing.STEPS.values():
        assert sum(f"| {label} |" in line for line in lines) == 1


def test_each_stage_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (GraphSize(150, 6, 80), GraphSize(200, 8, 90))
    for name in ("MORE_CONFIGS", "MORE_NODES"):
        monkeypatch.setattr(stages, name, sizes)
    text = stages.report()
    assert text.count("| Kendall tau | ") == text.count("| GNN training step, 64 configs | ") == 2
    assert "| stage | 150 | 200 | exponent |" in text


@pytest.mark.slow
def test_workers_end_with_the_bytes_of_one(tiny_tree: Path) -> None:
    *_, one, many, _, told = stages.report_workers(1, tiny_tree, "smoke").splitlines()
    assert one.startswith("| --workers 1 |") and many.startswith("| default |")
    assert told.startswith("The default takes ") and told.endswith("are the same bytes.")


CONFIGS = [
    CrossConfigSageConfig(hidden=16, blocks=blocks, cross_config=cross, channel_reduction=reduction)
    for blocks, cross, reduction in [(1, True, 8), (2, True, 1), (3, True, 8), (2, False, 8)]
]


@pytest.mark.parametrize("rule", ["hops-1", "hops-2", "none"])
@pytest.mark.parametrize("config", CONFIGS)
def test_scores_and_gradients_equal_the_plain_models(
    config: CrossConfigSageConfig, rule: str, layout_graph: LayoutGraph
) -> None:
    torch.manual_seed(0)
    ours = CrossConfigSage(config)
    plain = plain_copy(ours)
    with torch.no_grad():  # a temperature of 1 would hide mistakes
        for name, parameter in [*ours.named_parameters(), *plain.named_parameters()]:
            if name.endswith("log_temperature"):
                parameter.fill_(-0.4)
    scaler = fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")
    inputs = layout_inputs(layout_graph, rule=rule, scaler=scaler)
    target = torch.linspace(-1, 3, 9)
    scores = ours(inputs, np.arange(9))
    expected = plain(inputs, np.arange(9))
    assert expected.std() > 1e-4
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    (scores * target).sum().backward()
    (expected * target).sum().backward()
    gradients = plain_names({name: one.grad for name, one in ours.named_parameters()})
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None
        difference = (gradients[name] - parameter.grad).norm()
        assert difference < 1e-3 * parameter.grad.norm() + 1e-5, name
