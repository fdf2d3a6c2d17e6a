"""What stages took: measured, added up over calls, and kept."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from common.peak_memory import reset_peak
from pipeline.run.costs import COSTS, Costs, read_costs, write_costs

HELD_MIB = 200


def test_a_stage_that_comes_twice_adds_up() -> None:
    costs = Costs()
    for _ in range(2):
        with costs.stage("train"):
            time.sleep(0.02)
    assert costs.seconds["train"] >= 0.04
    assert costs.cpu_seconds["train"] < 0.04  # sleeping takes no processor
    other = Costs({"train": 1.0, "predict": 2.0}, {"train": 1e9, "predict": None}, {"train": 3.0})
    costs.add(other)
    assert 3.0 <= costs.cpu_seconds["train"] < 3.04
    assert costs.cpu_seconds["predict"] == 0
    assert costs.seconds["train"] >= 1.04
    assert costs.seconds["predict"] == 2.0
    assert costs.peak_mib["train"] == 1e9


def test_processes_that_a_stage_begins_are_counted() -> None:
    """A large file is packed by a process of its own."""
    costs = Costs()
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    with costs.stage("prepare"):
        subprocess.run([sys.executable, "-c", busy], check=True)
    assert costs.cpu_seconds["prepare"] >= 0.28  # the system counts in hundredths


@pytest.mark.skipif(not reset_peak(), reason="the system does not let a process reset its peak")
def test_each_stage_has_a_peak_of_its_own() -> None:
    costs = Costs()
    with costs.stage("large"):
        np.ones(HELD_MIB * 2**17).sum()
    with costs.stage("small"):
        pass
    large, small = costs.peak_mib["large"], costs.peak_mib["small"]
    assert large is not None
    assert small is not None
    assert large - small > 0.8 * HELD_MIB


def test_costs_are_read_as_written(tmp_path: Path) -> None:
    assert read_costs(tmp_path) == Costs()
    write_costs(tmp_path, Costs({"train": 1.234567}, {"train": None}, {"train": 2.345678}))
    assert read_costs(tmp_path) == Costs({"train": 1.23}, {"train": None}, {"train": 2.35})


def test_costs_of_a_run_begun_before_processor_time_was_kept_are_read(tmp_path: Path) -> None:
    (tmp_path / COSTS).write_text('{"seconds": {"train": 1.0}, "peak_mib": {"train": null}}')
    assert read_costs(tmp_path) == Costs({"train": 1.0}, {"train": None}, {})


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"seconds": {}}', '{"seconds": 1, "peak_mib": {}}']
)
def test_damaged_costs_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / COSTS).write_text(content)
    with pytest.raises(PipelineError, match=r"costs.json: cannot be read"):
        read_costs(tmp_path)
