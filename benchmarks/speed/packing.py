"""Packing one layout file, beside inflating it alone: seconds and peak memory of each."""

import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import PAGES, render, write_page
from benchmarks.speed.measuring import TreeCost, add_tree_cost, in_own_process, own_peak_mib
from data.graph_store.prepare import keep_freed_memory, prepare
from data.npz.read import CHUNK_BYTES, Archive
from data.packing.config_encoder import chunk_bytes
from data.read import read_layout
from data.synthetic.plans import GraphSize
from data.synthetic.write import write_sized
from data.tree import GraphFile, file_from_path

SIZES = (GraphSize(7_000, 200, 20_000), GraphSize(14_000, 500, 50_000))
LARGEST = GraphSize(43_615, 3_142, 70_000)
ARRAYS: dict[str, tuple[type[np.generic], tuple[int | None, ...]]] = {
    "node_opcode": (np.uint8, (None,)),
    "node_feat": (np.float32, (None, None)),
    "edge_index": (np.int64, (None, 2)),
    "node_config_ids": (np.int64, (None,)),
    "node_splits": (np.int64, (1, None)),
    "config_runtime": (np.int64, (None,)),
    "node_config_feat": (np.float32, (None, None, None)),
}
# What the seconds of each step are compared with; see STEPS.
COMPARED = {"inflate": "of inflating", "zipfile": "of zipfile"}
HEADER = ("step", "wall seconds", *COMPARED.values(), "CPU seconds", *COMPARED.values(), "peak MiB")
ROUNDS, N_ROWS, N_READS = 9, 128, 21  # a training step reads about so many rows


def inflate(path: Path, out: Path) -> None:
    """Read every array once as packing does, check its checksum, nothing else."""
    with Archive(path) as archive:
        header = archive.header("node_config_ids", dtype=np.int64, shape=(None,))
        at_once = chunk_bytes(header.shape[0])
        for key, (dtype, shape) in ARRAYS.items():
            for content in archive.rows(key, dtype=dtype, shape=shape, chunk_bytes=at_once):
                del content  # so that the next one takes its memory, which is in the cache


def inflate_plainly(path: Path, out: Path) -> None:
    """Read every member once as anybody would, by the standard library's zlib."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                while member.read(CHUNK_BYTES):
                    pass


def pack(path: Path, out: Path) -> None:
    """Check the whole file, and pack its configs in memory."""
    read_layout(file_from_path(path))


def store(path: Path, out: Path) -> GraphFile:
    """Check and pack the whole file into a store; return the stored graph."""
    (entry,) = prepare([file_from_path(path)], out)
    assert entry.stored is not None, entry.error
    return entry.stored


def row_reads_s(path: Path, out: Path) -> list[float]:
    """Return the seconds of reads of random configs from a store, without the first."""
    configs = read_layout(store(path, out)).configs
    rng = np.random.default_rng(0)
    seconds = []
    for _ in range(N_READS):
        index = rng.choice(configs.n_configs, min(N_ROWS, configs.n_configs), replace=False)
        start = time.perf_counter()
        configs.rows(index)
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


# In the order of the table. A step takes the file and an empty folder.
STEPS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "inflate": ("inflate the file as packing does, check its checksums", inflate),
    "zipfile": ("inflate with Python's zipfile", inflate_plainly),
    "pack": ("check the whole file, pack its configs in memory", pack),
    "prepare": ("`prepare`: the whole file checked and stored", store),
}


def run_step(name: str, path: Path, out: Path) -> dict[str, float]:
    """Run a step in this process; return its TreeCost, without starting and importing."""
    np.random.default_rng(np.unique(np.zeros(1)).size)  # imports what numpy leaves until then
    keep_freed_memory()  # as `prepare` does: no step pays for the same pages again and again
    cpu, wall = time.process_time(), time.perf_counter()
    STEPS[name][1](path, out)
    seconds, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return asdict(TreeCost(seconds, cpu_s, own_peak_mib()))


def in_child(function: str, path: Path, *arguments: str) -> Any:
    """Call a function of this file, with a folder to write to, in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        words = [*map(repr, arguments), f"Path({str(path)!r})", f"Path({out!r})"]
        setup = f"from benchmarks.speed.packing import {function}"
        return in_own_process(setup, f"{function}({', '.join(words)})")


def two_workers_mib(path: Path) -> float:
    """Return the peak memory of all processes that pack a file and its copy, by two workers."""
    with tempfile.TemporaryDirectory() as out:
        folder = Path(out) / "npz" / "layout" / "xla" / "random" / "train"
        folder.mkdir(parents=True)
        for name in ("one", "other"):
            (folder / f"{name}.npz").symlink_to(path)
        target = str(Path(out) / "store")
        command = ["-m", "pipeline", "prepare", "--data", out, "--store", target, "--workers", "2"]
        cost = TreeCost()
        add_tree_cost(cost, [sys.executable, *command])
        return cost.peak_mib


def measure(path: Path) -> dict[str, list[TreeCost]]:
    """Run all steps in turn, a few times over, so that a slow spell of the machine hits all."""
    costs: dict[str, list[TreeCost]] = {step: [] for step in STEPS}
    for _ in range(ROUNDS):
        for step in STEPS:
            costs[step].append(TreeCost(**in_child("run_step", path, step)))
    return costs


def cost_rows(costs: Mapping[str, Sequence[TreeCost]]) -> list[list[str]]:
    """Return a row per step: its best seconds, also over the best of COMPARED, and its memory."""
    rows = []
    for step, runs in costs.items():
        seconds = []
        for key in ("seconds", "cpu_s"):
            best = {name: min(getattr(cost, key) for cost in costs[name]) for name in costs}
            seconds += [best[step], *(best[step] / best[other] for other in COMPARED)]
        peak_mib = max(cost.peak_mib for cost in runs)
        rows.append([STEPS[step][0], *(f"{value:.2f}" for value in seconds), f"{peak_mib:,.0f}"])
    return rows


def measure_size(folder: Path, size: GraphSize) -> dict[str, Any]:
    """Write a file of this size, measure, and remove it; return what the section tells of it."""
    file = write_sized(folder, size)
    packed_mb = file.path.stat().st_size / 1e6
    rows = cost_rows(measure(file.path))
    rows_ms = median(in_child("row_reads_s", file.path)) * 1e3
    two_mib = two_workers_mib(file.path)
    file.path.unlink()
    facts = {"rows_ms": rows_ms, "two_mib": two_mib}
    return {"size": size, "packed_mb": packed_mb, "rows": rows, **facts}


def report(sizes: Sequence[GraphSize] = SIZES) -> str:
    with tempfile.TemporaryDirectory() as name:
        parts = [measure_size(Path(name), size) for size in sizes]
    return render("packing", parts=parts, header=HEADER, rounds=ROUNDS, n_rows=N_ROWS)


if __name__ == "__main__":
    head = "# Packing the largest graph\n\nWritten by `make bench-largest`.\n\n"
    write_page(PAGES / "packing_largest.md", head + report([LARGEST]))
