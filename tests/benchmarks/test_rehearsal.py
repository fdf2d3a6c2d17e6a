"""The rehearsal of the whole volume resumes, and its page has the cost of each command."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.rehearsal import HEADER, STAGES, page, run_stage
from common.errors import PipelineError
from common.settings import ROOT
from data.synthetic.write import published_graphs
from data.tree import COLLECTIONS, find_graphs


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smallest_share_goes_through_all_commands(tmp_path: Path) -> None:
    out, written = tmp_path / "out", tmp_path / "page.md"
    words = ["SHARE=0", f"REHEARSAL={out}", f"REHEARSAL_PAGE={written}"]
    subprocess.run(["make", "--old-file=setup", "rehearsal", *words], cwd=ROOT, check=True)
    text = written.read_text()
    assert {file.split for file in find_graphs(out / "data")} == {"valid", "test"}
    n_rows = sum(graph.split == "test" for graph in published_graphs(share=0))
    assert f"the submission of {n_rows} rows" in text and "not yet" not in text


def test_only_a_failed_command_is_run_again(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"`runs .*` ended with 1; see .*all-runs\.txt"):
        run_stage(tmp_path, "all", ["runs", str(tmp_path / "none")])
    (tmp_path / "none").mkdir()
    for _ in range(2):
        run_stage(tmp_path, "all", ["runs", str(tmp_path / "none")])
        shutil.rmtree(tmp_path / "none", ignore_errors=True)
    noted = json.loads((tmp_path / "stages/all-runs.json").read_text())
    assert noted["cpu_s"] > 0 and noted["peak_mib"] > 0


def test_page_has_the_collections_that_went_through(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no collection has gone through"):
        page(tmp_path)
    (tmp_path / "stages").mkdir()
    facts = {"began": "2026-01-01 10:00", "ended": "2026-01-01 11:00", "seconds": 2000.4}
    facts |= {"cpu_s": 1.0, "peak_mib": 300.0, "revision": "abc"}
    facts |= {"bytes": {"npz": 5e9, "store": 1e7, "run": 0}}
    for stage in STAGES:
        path = tmp_path / "stages" / f"{COLLECTIONS[0].name}-{stage}.json"
        path.write_text(json.dumps(facts))
    text = page(tmp_path)
    cost = "2,000 (1), 300 MiB"
    assert f"| {' | '.join(HEADER)} |" in text
    assert f"| tile:xla | {cost} | {cost} | {cost} | 5.00 | 0.01 | 0.00 |" in text
    assert "not yet: layout:xla:default" in text and "Outcome" not in text
