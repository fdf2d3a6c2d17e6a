"""Packing one layout file, beside inflating it alone: seconds and peak memory of each."""

import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import PAGES, render, write_page
from benchmarks.speed import in_own_process
from common.machine import own_peak_mib
from data.graph_store.prepare import keep_freed_memory, prepare
from data.graph_store.stored_graph import read_layout
from data.graphs.packing import chunk_bytes
from data.npz.archive import CHUNK_BYTES, Archive
from data.npz.graphs import graph_arrays
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import GraphFile, file_from_path

SIZES = (GraphSize(7_000, 200, 20_000), GraphSize(14_000, 500, 50_000))
LARGEST = GraphSize(43_615, 3_142, 70_000)
# What the seconds of each step are compared with; see STEPS.
COMPARED = {"inflate": "of inflating", "zipfile": "of zipfile"}
HEADER = ("step", "wall seconds", *COMPARED.values(), "CPU seconds", *COMPARED.values(), "peak MiB")
ROUNDS, N_ROWS, N_READS = 9, 128, 21  # a training step reads about so many rows


def inflate(path: Path, out: Path) -> None:
    """Read every array once as packing does, check its checksum, and pack nothing."""
    with Archive(path) as archive:
        at_once = chunk_bytes(len(graph_arrays(archive, "layout")["node_config_ids"]))
        given: dict[str, Any] = {"dtype": np.float32, "shape": (None, None, None)}
        for content in archive.rows("node_config_feat", **given, chunk_bytes=at_once):
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


# In the order of the table. A step takes the file and an empty folder.
STEPS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "inflate": ("inflate the file as packing does, check its checksums", inflate),
    "zipfile": ("inflate with Python's zipfile", inflate_plainly),
    "pack": ("check the whole file, pack its configs in memory", pack),
    "prepare": ("`prepare`: the whole file checked and stored", store),
}


def run_step(name: str, path: str) -> tuple[float, float, float]:
    """Run a step; return wall and CPU seconds without starting and importing, and the peak MiB."""
    np.random.default_rng(np.unique(np.zeros(1)).size)  # imports what numpy leaves until then
    keep_freed_memory()  # as `prepare` does: no step pays for the same pages again and again
    with tempfile.TemporaryDirectory() as out:
        cpu, wall = time.process_time(), time.perf_counter()
        STEPS[name][1](Path(path), Path(out))
        return time.perf_counter() - wall, time.process_time() - cpu, own_peak_mib()


def row_read_ms(path: Path) -> float:
    """Return the median milliseconds of reads of random configs from a store, but the first."""
    rng, seconds = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as out:
        configs = read_layout(store(path, Path(out))).configs
        for _ in range(N_READS):
            index = rng.choice(configs.n_configs, min(N_ROWS, configs.n_configs), replace=False)
            start = time.perf_counter()
            configs.rows(index)
            seconds.append(time.perf_counter() - start)
    return 1e3 * median(seconds[1:])


def cost_rows(costs: Mapping[str, NDArray[np.float64]]) -> list[list[str]]:
    """Return rows of the table: of each step's (rounds, 3) costs the best, and the most memory."""
    best = {step: runs.min(axis=0) for step, runs in costs.items()}
    rows = []
    for step, runs in costs.items():
        ratios = (best[step] / best[other] for other in COMPARED)
        cells = np.stack([best[step], *ratios])[:, :2].T.ravel()
        rows.append(
            [STEPS[step][0], *(f"{cell:.2f}" for cell in cells), f"{runs[:, 2].max():,.0f}"]
        )
    return rows


def measure_size(folder: Path, size: GraphSize) -> dict[str, Any]:
    """Write a file of this size, measure each step in turn; return what the section tells of it."""
    path = write_sized(folder, size).path
    imported = "from benchmarks.speed.packing import run_step"
    rounds = [
        [in_own_process(imported, f"run_step({step!r}, {str(path)!r})") for step in STEPS]
        for _ in range(ROUNDS)
    ]
    by_step = np.array(rounds).swapaxes(0, 1)  # (steps, rounds, 3)
    return {
        "size": size,
        "packed_mb": path.stat().st_size / 1e6,
        "rows": cost_rows(dict(zip(STEPS, by_step, strict=True))),
        "rows_ms": row_read_ms(path),
    }


def report(sizes: Sequence[GraphSize] = SIZES) -> str:
    parts = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            parts.append(measure_size(Path(name), size))
    return render("packing", parts=parts, header=HEADER, rounds=ROUNDS, n_rows=N_ROWS)


if __name__ == "__main__":
    head = "# Packing the largest graph\n\nWritten by `make bench-largest`.\n\n"
    write_page(PAGES / "packing_largest.md", head + report([LARGEST]))
