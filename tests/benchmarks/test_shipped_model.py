"""The shipped model is timed beside the winning one on the same configs."""

from collections.abc import Callable

import pytest

from benchmarks.speed import shipped_model


def test_a_line_holds_seconds_and_ratios_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_model, "N_SCORED", 12)
    lines = shipped_model.report([(40, 8)], rounds=1)
    header, line = lines[-3], lines[-1]
    assert line.count("|") == header.count("|") == lines[-2].count("|")
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert all(float(cell) >= 0 for cell in cells[1:])
    assert float(cells[3]) > 0 and float(cells[7]) > 0


def test_the_ratio_is_theirs_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("benchmarks.speed.shipped_model.time.perf_counter", lambda: now[0])

    def takes(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    work = {"cross_config_sage": takes(1.0), "reference_sage": takes(5.0)}
    assert shipped_model.compare(work, rounds=2).best == 5
