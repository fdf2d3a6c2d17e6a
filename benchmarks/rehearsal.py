"""The cost of each command of `make rehearsal`, and the page of those that have ended.

`python -m benchmarks.rehearsal OUT NAME COMMAND...` runs a command of the pipeline, unless
OUT/stages says that it has ended. `python -m benchmarks.rehearsal OUT PAGE` writes the page.
"""

import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import errors_in_one_line, render, write_page
from common.errors import PipelineError
from common.files import write_text
from common.machine import MAXRSS_BYTES, granted
from common.reproducibility import revision
from data.tree import COLLECTIONS
from submissions.run_report import read_report

STAGES = ("synthesize", "prepare", "run")  # of each collection
HEADER = ("collection", *STAGES, "npz, GB", "store, GB", "run, GB")


def run_stage(out: Path, name: str, command: Sequence[str]) -> None:
    """Run a command of the pipeline and note its cost, unless that was done.

    Args:
        out: Folder of the rehearsal.
        name: Name of a collection, or "all".
        command: Words after `python -m pipeline`.

    Raises:
        PipelineError: The command fails; the line names the file with its output.
    """
    note = _note(out, name, command[0])
    if note.exists():
        return
    print(name, command[0], flush=True)  # noqa: T201
    log = note.with_suffix(".txt")
    log.parent.mkdir(parents=True, exist_ok=True)
    began, start = _now(), time.perf_counter()
    with log.open("wb") as output:
        words = [sys.executable, "-m", "pipeline", *command]
        code = subprocess.run(words, stdout=output, check=False).returncode  # noqa: S603
    if code:
        raise PipelineError(f"`{' '.join(command)}` ended with {code}; see {log}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = name.replace(":", "/")
    places = {"npz": out / "data/npz" / folder, "store": out / "store" / folder}
    places["run"] = out / "runs" / name
    facts = {
        **{"began": began, "ended": _now(), "seconds": time.perf_counter() - start},
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss * MAXRSS_BYTES / 2**20,
        "bytes": {key: _bytes_below(place) for key, place in places.items()},
        "revision": revision(),
    }
    write_text(note, json.dumps(facts, indent=1) + "\n")


def _note(out: Path, name: str, command: str) -> Path:
    return out / "stages" / f"{name}-{command}.json"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def page(out: Path) -> str:
    """Return the page of the commands that have ended.

    Args:
        out: Folder of the rehearsal.

    Raises:
        PipelineError: No collection has gone through.
    """
    noted = {note.stem: json.loads(note.read_text()) for note in (out / "stages").glob("*.json")}
    done = [own.name for own in COLLECTIONS if f"{own.name}-run" in noted]
    if not done:
        raise PipelineError(f"{out}: no collection has gone through; run `make rehearsal`")
    rows = [_row(name, [noted[f"{name}-{stage}"] for stage in STAGES]) for name in done]
    if "all-run" in noted:
        rows.append(["all", "-", "-", _cost(noted["all-run"]), *["-"] * 3])
    times = [facts[key] for facts in noted.values() for key in ("began", "ended")]
    is_checked = "all-submission" in noted
    check = _note(out, "all", "submission").with_suffix(".txt")
    return render(
        "rehearsal",
        left=[own.name for own in COLLECTIONS if own.name not in done],
        times=(min(times), max(times)),
        header=HEADER,
        rows=rows,
        n_rows=json.loads(check.read_text())["rows"] if is_checked else None,
        scored=read_report(out / "joined").collections if is_checked else {},
        machine=f"Python {platform.python_version()}, {platform.machine()}, {granted()[0]} cores",
        revisions=sorted({facts["revision"] for facts in noted.values()}),
    )


def _row(name: str, stages: Sequence[dict[str, Any]]) -> list[str]:
    sizes = stages[-1]["bytes"].values()
    return [name, *map(_cost, stages), *(f"{n_bytes / 1e9:.2f}" for n_bytes in sizes)]


def _cost(facts: dict[str, Any]) -> str:
    return f"{facts['seconds']:,.0f} ({facts['cpu_s']:,.0f}), {facts['peak_mib']:,.0f} MiB"


@errors_in_one_line()
def main(arguments: Sequence[str]) -> None:
    """Run a stage, or write the page of all.

    Args:
        arguments: Words of the command line.
    """
    out, name, *command = arguments
    if command:
        run_stage(Path(out), name, command)
    else:
        write_page(Path(name), page(Path(out)))


if __name__ == "__main__":
    main(sys.argv[1:])
