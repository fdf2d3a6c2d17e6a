"""Time the layout networks and packing, and write docs/results/speed.md (`make bench`)."""

import multiprocessing
import platform
import tempfile
import time
import timeit
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import PAGES, errors_in_one_line, write_page
from benchmarks.plain_pyg import PlainLayoutModel
from benchmarks.workloads import CONFIGURABLE_SHARE, make_workload
from common.machine import own_peak_mib
from data.graph_store.prepare import keep_freed_memory, prepare
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import file_from_path
from models.config.recipe import Recipe, load_recipe
from models.training.device import prepare_torch
from models.training.losses import LOSSES

ROUNDS = 3
OURS = "cross_config_sage"
NETWORKS = (OURS, "plain PyG", "tgraph")
LARGEST = GraphSize(43_615, 3_142, 70_000)


class Setting(NamedTuple):
    """Size of a measurement."""

    n_nodes: int
    n_configs: int = 64
    hidden: int = 64


SETTINGS = (Setting(500), Setting(2_000), Setting(5_000), Setting(2_000, hidden=256))


class Work(NamedTuple):
    """Passes of a network over a graph."""

    forward: Callable[[], object]
    step: Callable[[], None]


def in_fresh_process(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a new process, and return its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def make_work(name: str, setting: Setting) -> Work:
    """Create a network and a graph for one thread. Its first `n_configs` configs are scored."""
    prepare_torch(seed=0, threads=1)
    if name == "tgraph":
        model, recipe = name, load_recipe("reference", [f"tgraph.hidden={setting.hidden}"])
    else:
        model, table = OURS, {OURS: {"hidden": setting.hidden}}
        recipe = Recipe.from_table(table, source="benchmarks.speed")
    n_configurable = int(CONFIGURABLE_SHARE * setting.n_nodes)
    size = GraphSize(setting.n_nodes, n_configurable, 2 * setting.n_configs)
    workload = make_workload(recipe, model, size)
    network = PlainLayoutModel(workload.config) if name == "plain PyG" else workload.network
    inputs, sample = workload.graphs[0], np.arange(setting.n_configs)

    @torch.inference_mode()
    def forward() -> object:
        return network.eval()(inputs, sample)

    def step() -> None:
        network.train().zero_grad()
        LOSSES[network.config.loss](network(inputs, sample), inputs.runtimes(sample)).backward()

    return Work(forward, step)


def step_mib(name: str, setting: Setting) -> float:
    """Return the peak memory that a forward and backward pass adds to this process, in MiB."""
    work, before = make_work(name, setting), own_peak_mib()
    work.step()
    return own_peak_mib() - before


def network_rows(setting: Setting) -> list[list[str]]:
    costs = []
    for name in NETWORKS:
        work = make_work(name, setting)
        runs = [timeit.repeat(run, number=1, repeat=1 + ROUNDS) for run in work]
        mib = in_fresh_process(step_mib, name, setting)
        costs.append([*(min(seconds[1:]) for seconds in runs), mib])
    size = f"{setting.n_nodes:,}, {setting.n_configs}, {setting.hidden}"
    rows = []
    for name, values in zip(NETWORKS, costs, strict=True):
        cells = [f"{cost:,.2f}" for cost in values]
        times = [f"{cost / our_cost:.2f}" for cost, our_cost in zip(values, costs[0], strict=True)]
        rows.append([size, name, *np.stack([cells, times], 1).ravel().tolist()])
    return rows


def pack(path: Path) -> tuple[float, ...]:
    """Pack a file, and return wall and CPU seconds, the MiB that this adds, and the MB written."""
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as out:
        before = np.array([time.perf_counter(), time.process_time(), own_peak_mib()])
        (entry,) = prepare([file_from_path(path)], Path(out))
        after = time.perf_counter(), time.process_time(), own_peak_mib()
        assert entry.stored is not None, entry.error
        return *(after - before), entry.stored.path.stat().st_size / 1e6


@errors_in_one_line()
def main() -> None:
    """Measure both sections and write the page."""
    networks = [row for setting in SETTINGS for row in network_rows(setting)]
    with tempfile.TemporaryDirectory() as folder:
        path = write_sized(Path(folder), LARGEST).path
        write_page(
            "speed",
            PAGES,
            networks=networks,
            packing=np.min([in_fresh_process(pack, path) for _ in range(ROUNDS)], axis=0),
            inflating=min(timeit.repeat(zipfile.ZipFile(path).testzip, number=1, repeat=ROUNDS)),
            rounds=ROUNDS,
            size=LARGEST,
            file_mb=path.stat().st_size / 1e6,
            machine=platform.machine(),
        )


if __name__ == "__main__":
    main()
