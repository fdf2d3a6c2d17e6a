"""What the statistics of a large layout graph cost, and which way of summing is the faster."""

import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.speed.memory import peak_mib
from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.synthetic import GraphSize, write_sized
from data.tree import GraphFile, collection_named
from features.statistics.configs import StatisticsSet, statistics_names, statistics_of
from features.statistics.layout_details import sum_entries

SIZE = GraphSize(14_000, 500, 50_000)
GOAL_S, GOAL_MIB = 20, 1024
SETS: tuple[StatisticsSet, ...] = ("plain", "all")
N_SUMMED = 2_000  # configs, for comparing ways to sum
UNTIED, VECTORS, FEATURES = 500, 20, 80  # columns that no graph ties, vectors each, statistics


def measure(graph: LayoutGraph, chosen: StatisticsSet) -> float:
    """Return the seconds that the statistics of all configs take."""
    start = time.perf_counter()
    statistics_of(graph, chosen)(np.arange(graph.n_configs))
    return time.perf_counter() - start


def peak(file: GraphFile, chosen: StatisticsSet) -> float:
    """Return how many MiB they add to the peak, their table and the graph included."""
    return peak_mib(
        "from data.read import read_graph_at\nimport numpy as np\n"
        "from features.statistics.configs import statistics_of\n"
        "def work(path):\n"
        "    graph = read_graph_at(path)\n"
        f"    return statistics_of(graph, {chosen!r})(np.arange(graph.n_configs))\n",
        f"work(Path({str(file.path)!r}))",
    )


def polars_sum(table: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Do what `sum_entries` does as a join and a group-by."""
    n_rows, m = places.shape
    entries = (places + np.arange(m) * (len(table) // m)).reshape(-1)
    lookup = (
        pl.LazyFrame(table).with_row_index("entry").with_columns(pl.col("entry").cast(pl.Int64))
    )
    configs = pl.LazyFrame({"config": np.repeat(np.arange(n_rows), m), "entry": entries})
    joined = configs.join(lookup, on="entry", how="left").drop("entry")
    return joined.group_by("config").sum().sort("config").drop("config").collect().to_numpy()


def compare_sums(n_configs: int = N_SUMMED) -> dict[str, float]:
    """Return the seconds of both ways to sum entries, for graphs whose columns are not tied."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(UNTIED * VECTORS, FEATURES))
    places = rng.integers(0, VECTORS, (n_configs, UNTIED))
    seconds, results = {}, []
    for name, way in (("one-hot product", sum_entries), ("polars", polars_sum)):
        start = time.perf_counter()
        results.append(way(table, places))
        seconds[name] = time.perf_counter() - start
    np.testing.assert_allclose(results[0], results[1], rtol=1e-9, atol=1e-9)
    return seconds


def report(size: GraphSize = SIZE) -> list[str]:
    """Measure; return the section of speed.md."""
    with tempfile.TemporaryDirectory() as name:
        collection = collection_named("layout:xla:random")
        file = write_sized(Path(name), size, collection=collection)
        graph = read_layout(file)
        rows = [
            f"| {chosen} | {len(statistics_names('layout', chosen))} "
            f"| {measure(graph, chosen):.1f} | {peak(file, chosen):.0f} |"
            for chosen in SETS
        ]
    seconds = compare_sums()
    return [
        "## Statistics of a large layout graph",
        "",
        f"{size.n_configs:,} configs of {size.n_configurable} configurable nodes among "
        f"{size.n_nodes:,}, synthetic;",
        "seconds without reading, memory with the graph and the table of results. Goals: "
        f"{GOAL_S} s and {GOAL_MIB} MiB.",
        "",
        "| statistics | columns | seconds | MiB |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        "A config's statistic is a sum of table entries, one per column. For "
        f"{N_SUMMED:,} configs of {UNTIED}",
        f"columns that are not tied and {FEATURES} statistics: as a product of sparse one-hot "
        f"rows {seconds['one-hot product']:.2f} s,",
        f"as a polars join and group-by {seconds['polars']:.2f} s; the product is what is used.",
    ]


if __name__ == "__main__":
    print("\n".join(report()))  # noqa: T201
