"""Packing one layout file, beside inflating it alone and beside what the winners did.

`python -m benchmarks.speed.packing --graph NODES:CONFIGURABLE:CONFIGS …` prints the section.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import PAGES
from benchmarks.speed.memory import peak_tree_mib
from benchmarks.speed.packing_steps import N_ROWS, STEPS, Cost
from benchmarks.speed.plain_steps import MATRICES, compares_each_with_each
from common.atomic import write_text
from common.errors import PipelineError
from common.settings import ROOT
from data.npz.zip_index import read_index
from data.synthetic import GraphSize, parse_size, write_sized
from data.synthetic.write import FORM
from data.tree import collection_named

SIZES = (GraphSize(7_000, 200, 20_000), GraphSize(14_000, 500, 50_000))
LARGEST = GraphSize(43_615, 3_142, 70_000)
LARGEST_RESULTS = PAGES / "packing_largest.md"
ROUNDS, WHOLE_ROUNDS = 9, 3
LABELS = {
    "inflate": "inflate the file, check its checksums",
    "pack": "pack the configs",
    "prepare": "`prepare`: the whole file checked and stored",
    "load": "`np.load` of everything",
    "winners": "the winners' steps, whole file",
}
WHOLE = ("load", "winners")  # the steps that hold the whole file in memory, several times over
MAX_WHOLE_BYTES = 2 << 30
MAX_TWO_WORKERS_MIB = 700
MAX_OVER_INFLATE, MIN_UNDER_WINNERS, MAX_ROWS_MS = 1.4, 15, 5

Summary = Callable[[Sequence[float]], float]


def in_child(step: str, path: Path) -> Any:
    """Run one step in a process of its own; return what it printed."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "benchmarks.speed.packing_steps", step, str(path), out]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(done.stdout)


def two_workers_mib(path: Path) -> float:
    """Return the peak memory of all processes that pack a file and its copy, by two workers."""
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "npz" / "layout" / "xla" / "random" / "train"
        folder.mkdir(parents=True)
        for name in ("one", "other"):
            (folder / f"{name}.npz").symlink_to(path)
        store = str(Path(out) / "store")
        command = ["-m", "pipeline", "prepare", "--data", out, "--store", store, "--workers", "2"]
        return peak_tree_mib([sys.executable, *command])


def measure(path: Path) -> dict[str, list[Cost]]:
    """Run all steps in turn, a few times over, so that a slow spell of the machine hits all."""
    n_bytes = read_index(path)["node_config_feat"].n_bytes
    steps = [step for step in STEPS if step not in WHOLE or n_bytes <= MAX_WHOLE_BYTES]
    costs: dict[str, list[Cost]] = {step: [] for step in steps}
    for number in range(ROUNDS):
        for step in steps:
            if step not in WHOLE or number < WHOLE_ROUNDS:
                costs[step].append(Cost(**in_child(step, path)))
    return costs


def cost_table(costs: dict[str, list[Cost]]) -> list[str]:
    """Return a Markdown table: one row per step."""
    lines = [
        "| step | seconds: best | median | CPU seconds: best | peak MiB | bytes kept |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for step, runs in costs.items():
        wall = [cost.wall_s for cost in runs]
        cpu_s = min(cost.cpu_s for cost in runs)
        mib = max(cost.peak_mib for cost in runs)
        kept = f"{runs[0].bytes_out:,}" if runs[0].bytes_out else "none"
        lines.append(
            f"| {LABELS[step]} | {min(wall):.2f} | {median(wall):.2f} | {cpu_s:.2f} "
            f"| {mib:,.0f} | {kept} |"
        )
    return lines


def ratio(costs: dict[str, list[Cost]], over: str, under: str, summary: Summary) -> float:
    """Return how many times the seconds of step `under` step `over` takes."""
    tops, bottoms = ([cost.wall_s for cost in costs[step]] for step in (over, under))
    return summary(tops) / summary(bottoms)


def ratio_lines(costs: dict[str, list[Cost]]) -> list[str]:
    """Return what the seconds say against the two goals: best by best, median by median."""
    rows = (
        ("prepare / inflate", "prepare", "inflate", f"at most {MAX_OVER_INFLATE} from 1 GB on"),
        ("pack / inflate", "pack", "inflate", f"at most {MAX_OVER_INFLATE} from 1 GB on"),
        ("winners' steps / prepare", "winners", "prepare", f"at least {MIN_UNDER_WINNERS}"),
    )
    lines = ["| ratio of seconds | best | median | goal |", "|---|---:|---:|---:|"]
    for label, over, under, goal in (row for row in rows if row[1] in costs):
        best, middle = (ratio(costs, over, under, summary) for summary in (min, median))
        lines.append(f"| {label} | {best:.2f} | {middle:.2f} | {goal} |")
    return lines


def way_to_compare(n_configs: int) -> str:
    """Say how the winners' steps find repeated configs."""
    if compares_each_with_each(n_configs):
        return f"in {MATRICES} matrices of configs by configs"
    return f"by sorting: {MATRICES} matrices of configs by configs do not fit into memory"


def section(folder: Path, size: GraphSize) -> list[str]:
    """Write a file of this size, measure, and remove it."""
    file = write_sized(folder, size, collection=collection_named("layout:xla:random"))
    packed_mb = file.path.stat().st_size / 1e6
    costs = measure(file.path)
    rows_ms = median(in_child("rows", file.path)) * 1e3
    kept = in_child("config_bytes", file.path)
    two_mib = two_workers_mib(file.path)
    file.path.unlink()
    return [
        f"{size.n_nodes:,} nodes, {size.n_configurable} configurable, {size.n_configs:,} configs:",
        f"{size.config_bytes / 1e9:.2f} GB of configs in a file of {packed_mb:.1f} MB.",
        f"The winners' steps find repeated configs {way_to_compare(size.n_configs)}.",
        "",
        *cost_table(costs),
        "",
        *ratio_lines(costs),
        "",
        f"Reading {N_ROWS} random configs from the store takes {rows_ms:.2f} ms (median).",
        f"The configs take {kept['mapped']:,} bytes of the store, where they are mapped, and",
        f"{kept['archived']:,} bytes of an archive. Two such files packed by two workers take",
        f"{two_mib:,.0f} MiB in all processes together (goal: less than {MAX_TWO_WORKERS_MIB}).",
    ]


def report(sizes: Sequence[GraphSize] = SIZES) -> list[str]:
    """Measure; return the section of speed.md."""
    lines = [
        "## Packing layout configs",
        "",
        f"Synthetic files, each step in a process of its own, in turn, {ROUNDS} times; the two",
        f"that hold the whole file in memory {WHOLE_ROUNDS} times. Reading {N_ROWS} configs of 500",
        f"nodes should take less than {MAX_ROWS_MS} ms.",
    ]
    with tempfile.TemporaryDirectory() as name:
        for size in sizes:
            lines += ["", *section(Path(name), size)]
    return lines


def main() -> None:
    """Measure the sizes that are given; print the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", action="append", metavar=FORM, help="size; may be repeated")
    parser.add_argument(
        "--largest", action="store_true", help=f"write {LARGEST_RESULTS.name}; takes 5 minutes"
    )
    options = parser.parse_args()
    try:
        sizes = [parse_size(text) for text in options.graph or []]
        if options.largest:
            lines = ["# Packing the largest graph", "", "Written by `make bench-largest`.", ""]
            write_text(LARGEST_RESULTS, "\n".join([*lines, *report([LARGEST])]) + "\n")
        else:
            print("\n".join(report(sizes or SIZES)))  # noqa: T201
    except PipelineError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
