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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import PAGES, render, write_page
from benchmarks.speed.measuring import TreeCost, add_tree_cost
from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.git import revision
from data.synthetic.plans import published_graphs
from data.tree import COLLECTIONS, SPLITS, Collection, collection_named

RESULTS = PAGES / "rehearsal.md"
RECIPE, ALL = "trees", "all"
TIMED = ("synthesize", "prepare", "audit", "train", "rank", "run")  # columns of the page
POLL_S = 0.2
Entry = dict[str, Any]


@dataclass(frozen=True)
class Rehearsal:
    """What is done in the folder `out`, which gets data, store, runs and joined."""

    out: Path
    share: float = 1.0  # of the graphs of each part
    workers: int = 1

    def commands(self, collection: Collection) -> dict[str, list[str]]:
        made = ["--plan", "published", "--share", str(self.share), "--collections", collection.name]
        run = ["--collections", collection.name, "--out", f"{self.out}/runs/{collection.slug}"]
        workers = ["--workers", str(self.workers)]
        return {
            "synthesize": ["synthesize", "--out", f"{self.out}/data", *made, *workers],
            "prepare": ["prepare", *self._places, *workers],
            "run": ["run", *self._places, "--recipe", RECIPE, *run, "--resume", *workers],
        }

    def last_commands(self) -> dict[str, list[str]]:
        models = ["--models", f"{self.out}/runs", "--workers", str(self.workers)]
        out = ["--out", f"{self.out}/joined", "--resume"]
        answer = [f"{self.out}/joined/submission.csv", "--data", f"{self.out}/data"]
        return {
            "join": ["run", *self._places, "--recipe", RECIPE, *out, *models],
            "check": ["submission", "check", *answer, "--json"],
        }

    @property
    def _places(self) -> list[str]:
        return ["--data", f"{self.out}/data", "--store", f"{self.out}/store"]

    def held_bytes(self, collection: str) -> dict[str, int]:
        """Return the bytes of a collection's files now; none of ALL."""
        folders = {
            "npz": self.out / "data" / "npz" / collection.replace(":", "/"),
            "store": self.out / "store" / collection.replace(":", "/"),
            "run": self.out / "runs" / collection.replace(":", "-"),
        }
        return {
            name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            for name, folder in folders.items()
        }


def rehearse(todo: Rehearsal, collections: Sequence[Collection]) -> dict[str, Entry]:
    """Do what the journal lacks, and return it; the last stages need all five collections.

    Raises:
        UsageError: the journal is of another share.
        PipelineError: a command failed; the same call tries it again.
    """
    journal = read_journal(todo)
    for collection in collections:
        for stage, command in todo.commands(collection).items():
            _do(todo, journal, f"{collection.name} {stage}", command)
        for root in (todo.out / "data" / "npz", todo.out / "store"):
            shutil.rmtree(root / collection.folder / "train", ignore_errors=True)
    if all(journal.get(f"{collection.name} run", {}).get("done") for collection in COLLECTIONS):
        for stage, command in todo.last_commands().items():
            _do(todo, journal, f"{ALL} {stage}", command)
    return journal


def read_journal(todo: Rehearsal) -> dict[str, Entry]:
    """Read what was done: by "collection stage" its cost, and where it ended its facts."""
    path = todo.out / "journal.json"
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content["share"] != todo.share:
        raise UsageError(f"{path}: is of --share {content['share']}; give that, or another --out")
    stages: dict[str, Entry] = content["stages"]
    return stages


def _write(todo: Rehearsal, journal: Mapping[str, Entry]) -> None:
    content = {"share": todo.share, "stages": journal}
    write_text(todo.out / "journal.json", json.dumps(content, indent=1) + "\n")


def _do(todo: Rehearsal, journal: dict[str, Entry], name: str, command: Sequence[str]) -> None:
    """Run a stage unless it is done. What it prints goes into a file."""
    entry = journal.setdefault(name, {"done": False, "calls": 0, "began": _now()})
    if entry["done"]:
        return
    print(name, flush=True)  # noqa: T201
    log = todo.out / "logs" / f"{name.replace(' ', '-').replace(':', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    cost = TreeCost(**entry.get("cost", {}))
    entry["calls"] += 1
    try:
        with log.open("wb") as output:
            whole = [sys.executable, "-m", "pipeline", *command]
            add_tree_cost(cost, whole, output=output, every_s=POLL_S)
        entry["done"] = True
    except subprocess.CalledProcessError as error:
        line = f"`{' '.join(command)}` ended with {error.returncode}; see {log}"
        raise PipelineError(line) from error
    finally:
        cores = len(os.sched_getaffinity(0))
        load = round(os.getloadavg()[1], 1)
        entry |= {"cost": asdict(cost), "ended": _now(), "load": load, "cores": cores}
        entry |= {"revision": revision(), "bytes": todo.held_bytes(name.split(maxsplit=1)[0])}
        _write(todo, journal)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M")


def page(todo: Rehearsal, journal: Mapping[str, Entry]) -> str:
    ended = {name: entry for name, entry in journal.items() if entry["done"]}
    done = [c for c in COLLECTIONS if f"{c.name} run" in ended]
    loads = [entry["load"] for entry in ended.values()]
    times = [entry[key] for entry in ended.values() for key in ("began", "ended")]
    check, joined = todo.out / "logs" / f"{ALL}-check.txt", todo.out / "joined" / "report.json"
    is_checked = f"{ALL} check" in ended
    return render(
        "rehearsal",
        recipe=RECIPE,
        what="All graphs" if todo.share == 1 else f"A share of {todo.share:g} of the graphs",
        n_done=len(done),
        left=[c.name for c in COLLECTIONS if c not in done],
        times=(min(times), max(times)),
        cores=_each(ended, "cores"),
        all_cores=os.cpu_count(),
        loads=(min(loads), max(loads)),
        timed=("collection", "files", "configs", *TIMED),
        time_rows=_times(todo, ended, done),
        space_rows=_space(ended, done),
        n_rows=json.loads(check.read_text())["rows"] if is_checked else None,
        scored=json.loads(joined.read_text())["collections"] if is_checked else {},
        made=f"Python {platform.python_version()}, {platform.machine()}, revision "
        + _each(ended, "revision"),
    )


def _each(ended: Mapping[str, Entry], key: str) -> str:
    return " and ".join(sorted({str(entry[key]) for entry in ended.values()}))


def _times(
    todo: Rehearsal, ended: Mapping[str, Entry], done: Sequence[Collection]
) -> list[list[str]]:
    rows = []
    for collection in done:
        graphs = published_graphs([collection], SPLITS, todo.share)
        n_configs = sum(graph.size.n_configs for graph in graphs)
        costs = {s: ended[f"{collection.name} {s}"]["cost"] for s in ("synthesize", "prepare")}
        costs |= _within(todo.out / "runs" / collection.slug)
        costs["run"] = ended[f"{collection.name} run"]["cost"]
        cells = [_seconds(costs[column]) for column in TIMED]
        rows.append([collection.name, f"{len(graphs):,}", f"{n_configs:,}", *cells])
    if f"{ALL} join" in ended:
        rows.append([ALL, *["-"] * 7, _seconds(ended[f"{ALL} join"]["cost"])])
    return rows


def _within(run: Path) -> dict[str, Entry]:
    """Return what the parts of a run took, by the first word of what it calls them."""
    report = json.loads((run / "report.json").read_text())
    costs = {part: {"seconds": 0.0, "cpu_s": 0.0} for part in ("audit", "train", "rank")}
    for name, seconds in report["seconds"].items():
        first = name.split(maxsplit=1)[0]
        part = {"prepare": "audit", "train": "train"}.get(first, "rank")
        if first != "score":
            costs[part]["seconds"] += seconds
            costs[part]["cpu_s"] += report["cpu_seconds"][name]
    return costs


def _seconds(cost: Mapping[str, float]) -> str:
    return f"{cost['seconds']:,.0f} ({cost['cpu_s']:,.0f})"


def _space(ended: Mapping[str, Entry], done: Sequence[Collection]) -> list[list[str]]:
    rows = []
    for collection in done:
        entries = [ended[f"{collection.name} {s}"] for s in ("synthesize", "prepare", "run")]
        peaks = [f"{entry['cost']['peak_mib']:,.0f}" for entry in entries]
        held = entries[-1]["bytes"].values()
        rows.append([collection.name, *peaks, *(f"{n_bytes / 1e9:.2f}" for n_bytes in held)])
    if f"{ALL} join" in ended:
        peak = ended[f"{ALL} join"]["cost"]["peak_mib"]
        rows.append([ALL, "-", "-", f"{peak:,.0f}", "-", "-", "-"])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Rehearse, and write the page of what has been done so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/rehearsal"))
    parser.add_argument("--share", type=float, default=1.0, help="of the graphs of each part")
    parser.add_argument("--collections", nargs="+", default=[c.name for c in COLLECTIONS])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--page", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    todo = Rehearsal(given.out.resolve(), given.share, given.workers)
    try:
        rehearse(todo, [collection_named(name) for name in given.collections])
    finally:
        journal = read_journal(todo)
        if any(name.endswith(" run") and entry["done"] for name, entry in journal.items()):
            write_page(given.page, page(todo, journal))


if __name__ == "__main__":
    main()
