"""`python -m benchmarks.segments`: cells that exist are not run again, and rows of the page."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import segments
from benchmarks.accuracy.tasks import Sources
from common.settings import SAMPLE


def test_only_missing_cells_run_and_all_are_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run(job: Any) -> dict[str, Any]:
        calls.append(next(key for key in jobs if jobs[key] is job))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return {"s": 1.0, "mib": 2.0, "graph_mib": 3.0, "cpu_s": 4.0, "graphs": {}}

    monkeypatch.setattr(segments, "in_fresh_process", run)
    path = tmp_path / "cells.jsonl"
    jobs = segments.jobs_of({"sample": Sources(SAMPLE, None)}, [0])
    with pytest.raises(KeyboardInterrupt):
        segments.run_missing(tmp_path, jobs)
    cells = segments.run_missing(tmp_path, jobs)
    n_cells = len(segments.TRAININGS) + len(segments.STEP_NODES) * len(segments.MODES)
    assert len(cells) == n_cells == len(path.read_text().splitlines())
    assert sorted(calls.count(key) for key in set(calls)) == [1] * (n_cells - 1) + [2]
    assert cells == [json.loads(line) for line in path.read_text().splitlines()]
    rows = list(segments.step_rows(cells))
    assert [row[0] for row in rows[::3]] == ["5,000", "10,000", "20,000", "43,615"]
    assert rows[0] == ["5,000", "all segments", "1.00", "3", "2"]
