"""`make rehearsal`: the whole pipeline on the public dataset's volume, made up; writes a page.

`python -m benchmarks.rehearsal` calls the public commands as a user would. Of each collection: make
the files, pack them, `run` (audit, training, ranking), remove the train split. In the end the
models rank all test graphs into one submission, which is checked. OUT/journal.json keeps what each
stage took, so that the same command goes on where it was stopped.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import PAGES, render, write_page
from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.machine import MAXRSS_BYTES, granted
from common.reproducibility import revision
from common.settings import ROOT
from data.synthetic.write import published_graphs
from data.tree import COLLECTIONS, SPLITS, Collection, collection_named

RECIPE, ALL = "trees", "all"
STAGES = ("synthesize", "prepare", "run")  # of each collection
Journal = dict[str, dict[str, Any]]  # by "collection stage"


def commands_of(given: argparse.Namespace, collection: Collection | None) -> dict[str, list[str]]:
    """Return the commands of a collection by stage, or the last ones, of all collections."""
    out, workers = given.out, ["--workers", str(given.workers)]
    places = ["--data", f"{out}/data", "--store", f"{out}/store"]
    run = ["run", *places, "--recipe", RECIPE, "--resume", *workers]
    if collection is None:
        answer = [f"{out}/joined/submission.csv", "--data", f"{out}/data"]
        return {
            "join": [*run, "--out", f"{out}/joined", "--models", f"{out}/runs"],
            "check": ["submission", "check", *answer, "--json"],
        }
    own = ["--collections", collection.name]
    made = ["--out", f"{out}/data", "--plan", "published", "--share", str(given.share)]
    return {
        "synthesize": ["synthesize", *made, *own, *workers],
        "prepare": ["prepare", *places, *workers],
        "run": [*run, *own, "--out", f"{out}/runs/{collection.slug}"],
    }


def rehearse(given: argparse.Namespace) -> None:
    """Do what the journal lacks; the last stages need all five collections."""
    journal = read_journal(given)
    for name in given.collections:
        collection = collection_named(name)
        for stage, command in commands_of(given, collection).items():
            _do(given, journal, f"{name} {stage}", command)
        for root in (given.out / "data" / "npz", given.out / "store"):
            shutil.rmtree(root / collection.folder / "train", ignore_errors=True)
    if all(journal.get(f"{own.name} run", {}).get("done") for own in COLLECTIONS):
        for stage, command in commands_of(given, None).items():
            _do(given, journal, f"{ALL} {stage}", command)


def read_journal(given: argparse.Namespace) -> Journal:
    """Read what was done: by "collection stage" its cost, and where it ended its facts."""
    path = given.out / "journal.json"
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content["share"] != given.share:
        raise UsageError(f"{path}: is of --share {content['share']}; give that, or another --out")
    stages: Journal = content["stages"]
    return stages


def _do(given: argparse.Namespace, journal: Journal, name: str, command: Sequence[str]) -> None:
    """Run a stage unless it is done. What it prints goes into a file."""
    new = {"done": False, "calls": 0, "began": _now(), "seconds": 0.0, "cpu_s": 0.0, "peak_mib": 0}
    entry = journal.setdefault(name, new)
    if entry["done"]:
        return
    print(name, flush=True)  # noqa: T201
    log = given.out / "logs" / f"{name.replace(' ', '-').replace(':', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    entry["calls"] += 1
    try:
        code = _run(command, log, entry)
        entry["done"] = code == 0
    finally:
        entry |= {"ended": _now(), "revision": revision()}
        entry["bytes"] = _held_bytes(given.out, name.split(maxsplit=1)[0])
        content = {"share": given.share, "stages": journal}
        write_text(given.out / "journal.json", json.dumps(content, indent=1) + "\n")
    if code:
        raise PipelineError(f"`{' '.join(command)}` ended with {code}; see {log}")


def _run(command: Sequence[str], log: Path, entry: dict[str, Any]) -> int:
    """Run a command; add what it and all processes below it took to its entry, stopped or not."""
    start, usage = time.perf_counter(), None
    with log.open("wb") as output:
        whole = [sys.executable, "-m", "pipeline", *command]
        process = subprocess.Popen(whole, cwd=ROOT, stdout=output)  # noqa: S603
    try:
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        if usage is None:
            process.terminate()  # it keeps what it has done
            _, status, usage = os.wait4(process.pid, 0)
        entry["seconds"] += time.perf_counter() - start
        entry["cpu_s"] += usage.ru_utime + usage.ru_stime
        entry["peak_mib"] = max(entry["peak_mib"], usage.ru_maxrss * MAXRSS_BYTES / 2**20)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def _held_bytes(out: Path, collection: str) -> dict[str, int]:
    folders = {
        "npz": out / "data" / "npz" / collection.replace(":", "/"),
        "store": out / "store" / collection.replace(":", "/"),
        "run": out / "runs" / collection.replace(":", "-"),
    }
    return {
        name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        for name, folder in folders.items()
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def page(given: argparse.Namespace, journal: Journal) -> str:
    ended = {name: entry for name, entry in journal.items() if entry["done"]}
    done = [own for own in COLLECTIONS if f"{own.name} run" in ended]
    times = [entry[key] for entry in ended.values() for key in ("began", "ended")]
    check, joined = given.out / "logs" / f"{ALL}-check.txt", given.out / "joined" / "report.json"
    is_checked = f"{ALL} check" in ended
    revisions = sorted({entry["revision"] for entry in ended.values()})
    return render(
        "rehearsal",
        recipe=RECIPE,
        what="All graphs" if given.share == 1 else f"A share of {given.share:g} of the graphs",
        n_done=len(done),
        left=[own.name for own in COLLECTIONS if own not in done],
        times=(min(times), max(times)),
        header=["collection", "files", "configs", *STAGES, "npz, GB", "store, GB", "run, GB"],
        n_cores=granted()[0],
        rows=_rows(given.share, ended, done),
        n_rows=json.loads(check.read_text())["rows"] if is_checked else None,
        scored=json.loads(joined.read_text())["collections"] if is_checked else {},
        made=f"Python {platform.python_version()}, {platform.machine()}, revision "
        + " and ".join(revisions),
    )


def _rows(share: float, ended: Journal, done: Sequence[Collection]) -> list[list[str]]:
    rows = []
    for own in done:
        graphs = published_graphs([own], SPLITS, share)
        n_configs = sum(graph.size.n_configs for graph in graphs)
        entries = [ended[f"{own.name} {stage}"] for stage in STAGES]
        held = (f"{n_bytes / 1e9:.2f}" for n_bytes in entries[-1]["bytes"].values())
        rows.append([own.name, f"{len(graphs):,}", f"{n_configs:,}", *map(_cost, entries), *held])
    if f"{ALL} join" in ended:
        rows.append([ALL, *["-"] * 4, _cost(ended[f"{ALL} join"]), *["-"] * 3])
    return rows


def _cost(entry: Mapping[str, float]) -> str:
    return f"{entry['seconds']:,.0f} ({entry['cpu_s']:,.0f}), {entry['peak_mib']:,.0f} MiB"


def main(arguments: Sequence[str] | None = None) -> None:
    """Rehearse, and write the page of what has been done so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=lambda name: Path(name).resolve(), default="runs/rehearsal")
    parser.add_argument("--share", type=float, default=1.0, help="of the graphs of each part")
    parser.add_argument("--collections", nargs="+", default=[own.name for own in COLLECTIONS])
    parser.add_argument("--workers", type=int, default=granted()[0])
    parser.add_argument("--page", type=Path, default=PAGES / "rehearsal.md")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        rehearse(given)
    finally:
        journal = read_journal(given)
        if any(name.endswith(" run") and entry["done"] for name, entry in journal.items()):
            write_page(given.page, page(given, journal))


if __name__ == "__main__":
    main()
