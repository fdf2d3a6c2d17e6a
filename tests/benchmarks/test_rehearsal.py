"""The rehearsal of the whole volume: it goes on where it was stopped, and tells what it did."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.rehearsal import main
from common.errors import PipelineError, UsageError
from data.synthetic.write import published_graphs
from data.tree import COLLECTIONS, find_graphs
from tests.support.real_data import ROOT

COMMAND = [sys.executable, "-m", "benchmarks.rehearsal", "--share", "0", "--workers", "2"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_smallest_share_goes_through_all_stages_after_a_kill(tmp_path: Path) -> None:
    command = [*COMMAND, "--out", str(tmp_path / "out"), "--page", str(tmp_path / "page.md")]
    journal = tmp_path / "out" / "journal.json"
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        while not (journal.exists() and "tile:xla prepare" in journal.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)  # and what it has begun
    subprocess.run(command, cwd=ROOT, check=True)
    stages = json.loads(journal.read_text())["stages"]
    assert len(stages) == 3 * len(COLLECTIONS) + 2
    assert all(entry["done"] and entry["cpu_s"] > 0 for entry in stages.values())
    assert stages["tile:xla synthesize"]["calls"] == 1
    left = find_graphs(tmp_path / "out" / "data")
    assert {file.split for file in left} == {"valid", "test"}
    n_rows = sum(graph.split == "test" for graph in published_graphs(share=0))
    text = (tmp_path / "page.md").read_text()
    assert "A share of 0 of the graphs of 5 collections" in text and "not yet" not in text
    assert f"the submission of {n_rows} rows" in text


def test_a_failed_stage_is_noted_and_named_and_done_again(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    for calls in (1, 2):
        with pytest.raises(PipelineError, match=r"`synthesize .*` ended with 1; see .*synthesize"):
            main(["--out", str(tmp_path), "--share", "0", "--collections", "tile:xla"])
        stages = json.loads((tmp_path / "journal.json").read_text())["stages"]
        entry = stages["tile:xla synthesize"]
        assert not entry["done"] and entry["calls"] == calls and entry["seconds"] > 0
    with pytest.raises(UsageError, match=r"journal.json: is of --share 0\.0"):
        main(["--out", str(tmp_path)])
