"""The rehearsal of the whole volume ends with an accepted submission."""

import subprocess
from pathlib import Path

import pytest

from common.settings import ROOT
from data.synthetic.write import published_graphs
from data.tree import find_graphs


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_smallest_share_goes_through_all_commands(tmp_path: Path) -> None:
    words = ["make", "--old-file=setup", "rehearsal", "SHARE=0", f"REHEARSAL={tmp_path}"]
    for _ in range(2):  # the second call finds all collections done
        subprocess.run(words, cwd=ROOT, check=True)
    assert {file.split for file in find_graphs(tmp_path / "data")} == {"valid", "test"}
    n_rows = sum(graph.split == "test" for graph in published_graphs(share=0))
    lines = (tmp_path / "joined" / "submission.csv").read_text().splitlines()
    assert len(lines) == 1 + n_rows
