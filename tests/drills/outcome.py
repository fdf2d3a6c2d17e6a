"""What a run leaves, so that a disturbed one can be compared with an undisturbed one."""

import json
from pathlib import Path
from typing import Any

MEASURED = {"report.json", "report.html", "report.png"}  # hold times and memory
TIMED = ("seconds", "cpu_seconds", "peak_mib")


def contents(folder: Path) -> dict[str, bytes]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: b"" if name in MEASURED else path.read_bytes()
        for name, path in sorted(files.items())
        if path.name != ".lock"
    }


def told(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return {key: value for key, value in report.items() if key not in TIMED}


def check_same(out: Path, undisturbed: Path) -> None:
    check_same_store(out, undisturbed)
    assert told(out) == told(undisturbed)


def check_same_store(store: Path, undisturbed: Path) -> None:
    found, want = contents(store), contents(undisturbed)
    assert found.keys() == want.keys()
    other = [name for name in want if found[name] != want[name]]
    assert not other, other
