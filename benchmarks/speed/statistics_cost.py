"""What the statistics of a large layout graph cost."""

import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import table
from benchmarks.speed.measuring import peak_mib
from benchmarks.speed.stages import write_graph
from data.read import read_layout
from data.synthetic import GraphSize
from data.tree import file_from_path
from features.statistics.configs import StatisticsSet, statistics_names, statistics_of

SIZE = GraphSize(14_000, 500, 50_000)
GOAL_S, GOAL_MIB = 20, 1024
SETS: tuple[StatisticsSet, ...] = ("plain", "all")


def all_statistics(path: Path, chosen: StatisticsSet) -> NDArray[np.float32]:
    """Read a graph; return (c, f) float32, the statistics of all its configs."""
    graph = read_layout(file_from_path(path))
    return statistics_of(graph, chosen)(np.arange(graph.n_configs))


def measure(path: Path, chosen: StatisticsSet) -> list[str]:
    """Return the cells of a line: seconds for all configs, and what they add to the peak memory.

    The memory is that of the table and of the graph; the seconds are without reading.
    """
    graph = read_layout(file_from_path(path))
    start = time.perf_counter()
    statistics_of(graph, chosen)(np.arange(graph.n_configs))
    seconds = time.perf_counter() - start
    mib = peak_mib(
        "from benchmarks.speed.statistics_cost import all_statistics",
        f"all_statistics(Path({str(path)!r}), {chosen!r})",
    )
    columns = len(statistics_names("layout", chosen))
    return [chosen, f"{columns}", f"{seconds:.1f}", f"{mib:.0f}"]


def report(size: GraphSize = SIZE) -> list[str]:
    """Measure; return the section of speed.md."""
    with tempfile.TemporaryDirectory() as name:
        file = write_graph(Path(name), size)
        rows = [measure(file.path, chosen) for chosen in SETS]
    return [
        "## Statistics of a large layout graph",
        "",
        f"{size.n_configs:,} configs of {size.n_configurable} configurable nodes among "
        f"{size.n_nodes:,}, synthetic;",
        "seconds without reading, memory with the graph and the table of results. Goals: "
        f"{GOAL_S} s and {GOAL_MIB} MiB.",
        "",
        *table(["statistics", "columns", "seconds", "MiB"], rows),
    ]
