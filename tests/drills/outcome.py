"""What a run leaves, so that a disturbed one can be compared with an undisturbed one."""

import json
from pathlib import Path
from typing import Any

import polars as pl

MEASURED = {"report.json", "report.html", "report.png"}  # hold times and memory
LOCK = ".lock"
TIMED = ("seconds", "cpu_seconds", "peak_mib")


def contents(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LOCK:
            name = str(path.relative_to(folder))
            found[name] = b"" if name in MEASURED else path.read_bytes()
    return found


def told(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return {key: value for key, value in report.items() if key not in TIMED}


def check_same(out: Path, undisturbed: Path) -> None:
    found, want = contents(out), contents(undisturbed)
    assert found.keys() == want.keys()
    for name in ("submission.csv", "submission-valid.csv"):
        assert found[name] == want[name], name
    for path in undisturbed.rglob("*.parquet"):
        name = path.relative_to(undisturbed)
        assert pl.read_parquet(out / name).equals(pl.read_parquet(path)), name
    other = [name for name in want if found[name] != want[name]]
    assert not other, other
    assert told(out) == told(undisturbed)


def check_same_store(store: Path, undisturbed: Path) -> None:
    found, want = contents(store), contents(undisturbed)
    assert found.keys() == want.keys()
    other = [name for name in want if found[name] != want[name]]
    assert not other, other
