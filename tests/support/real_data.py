"""Real TpuGraphs files to test against; they are no part of the repository."""

import os
from pathlib import Path

import pytest

from data.tree import GraphFile, find_graphs

ROOT = Path(__file__).resolve().parents[2]
REAL = Path(os.environ.get("TPUGRAPHS_REAL") or ROOT.parent / "shared" / "tpugraphs")

requires_real_data = pytest.mark.skipif(
    not (REAL / "npz").is_dir(),
    reason=f"needs real TpuGraphs files at {REAL} (set TPUGRAPHS_REAL to look elsewhere)",
)


def real_files(kind: str = "", *, max_bytes: int | None = None) -> list[GraphFile]:
    """List the real files of a kind ("layout", "tile"; all by default); none where missing."""
    if not (REAL / "npz").is_dir():
        return []
    return [
        file
        for file in find_graphs(REAL)
        if file.collection.kind.startswith(kind)
        and (max_bytes is None or file.path.stat().st_size <= max_bytes)
    ]


def real_file(submission_id: str) -> GraphFile:
    """Return one real file; skip the test where the folder holds others."""
    for file in real_files():
        if file.submission_id == submission_id:
            return file
    pytest.skip(f"{REAL} has no {submission_id}")
