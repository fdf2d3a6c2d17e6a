"""The benchmark of whole graphs runs and reports what it measured."""

import pytest

from benchmarks.speed import segment_memory
from benchmarks.speed.segment_memory import Costs, measure, node_input_mib, report
from data.synthetic import GraphSize

TINY = GraphSize(1_500, 60, 40)


def test_the_section_has_a_line_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = Costs(240, 600, 610, first_s=0.5, step_s=0.25, head_s=2, predict_s=1)
    monkeypatch.setattr(segment_memory, "measure", lambda _: costs)
    cells = [cell.strip() for cell in report((TINY,))[-1].strip("|").split("|")]
    sizes = ["1,500", "60", f"{node_input_mib(TINY):.0f}"]
    assert cells == [*sizes, "240", "600", "610", "0.50", "0.25", "2.00", "25.00"]


@pytest.mark.slow
def test_peaks_do_not_fall_and_every_phase_takes_time() -> None:
    costs = measure(TINY)
    assert 0 < costs.libraries_mib < costs.train_mib <= costs.predict_mib
    assert min(costs.first_s, costs.step_s, costs.head_s, costs.predict_s) > 0
