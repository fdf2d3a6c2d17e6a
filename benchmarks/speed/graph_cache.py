"""How often a training step finds its graph in the cache, at the published sizes.

`python -m benchmarks.speed.graph_cache` writes docs/results/graph_cache.md. 200 graphs have the
numbers of nodes and configs of layout:nlp; twenty of them are made, each under ten names, their
packed configs mapped from files as those of the store are. Steps draw graphs as training does.
"""

import platform
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import PAGES
from benchmarks.speed.stages import write_graph
from common.atomic import write_text
from common.git import revision
from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.synthetic import GraphSize
from data.tree import GraphFile
from features.scaling import fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs
from models.training.dataset import CACHE_BYTES, LRUCache, bytes_held
from models.training.device import prepare_torch

N_SIZES, NAMES_PER_SIZE, N_STEPS = 20, 10, 12_000  # steps as of the recipe `leaderboard`
MEAN_NODES, MOST_NODES, MEAN_CONFIGS = 5_659, 21_919, 56_534
NODES_PER_CONFIGURABLE = 10
WRITTEN_CONFIGS = 200  # of each size; the others repeat their rows in another order


def sizes() -> list[GraphSize]:
    """Return sizes that grow evenly in logarithms, of the published mean and maximum."""
    spread = np.exp(np.linspace(-1.7, 1.7, N_SIZES))
    nodes = np.minimum(MEAN_NODES * spread / spread.mean(), MOST_NODES)
    nodes[-1] = MOST_NODES
    nodes *= np.r_[np.full(N_SIZES - 1, (N_SIZES * MEAN_NODES - MOST_NODES) / nodes[:-1].sum()), 1]
    configs = MEAN_CONFIGS * np.linspace(0.6, 1.4, N_SIZES)
    return [
        GraphSize(int(n), int(n) // NODES_PER_CONFIGURABLE, int(c))
        for n, c in zip(nodes, configs, strict=True)
    ]


def mapped_graph(folder: Path, size: GraphSize) -> LayoutGraph:
    """Make a graph whose packed configs are mapped from files below `folder`."""
    few = replace(size, n_configs=WRITTEN_CONFIGS)
    graph = read_layout(write_graph(folder, few))
    rng = np.random.default_rng(size.n_nodes)
    sizes = graph.configs.alphabets.sizes
    indices = rng.integers(sizes, size=(size.n_configs, len(sizes)))  # hardly two of them equal
    path = folder / f"{size.name}.indices.npy"
    np.save(path, indices.astype(graph.configs.indices.dtype))
    configs = replace(graph.configs, indices=np.load(path, mmap_mode="r"))
    runtime_ns = rng.integers(10**6, 10**7, size.n_configs)
    return replace(graph, configs=configs, runtime_ns=runtime_ns)


def unpacked_bytes(inputs: LayoutInputs) -> int:
    """Return what a graph counts for if its configs count as one byte per layout entry."""
    configs = inputs.configs.n_configs * inputs.configs.n_configurable * 18
    return configs + inputs.node_feat.nbytes + bytes_held(inputs.neighbours)


def take_steps(cache: LRUCache[LayoutInputs], files: list[GraphFile]) -> None:
    """Ask for the graphs of all steps."""
    for step in range(N_STEPS):
        cache(files[np.random.default_rng([0, step]).permutation(len(files))[0]])


def measure() -> list[str]:
    """Ask a cache for the graphs of all steps, by both counts; return the page."""
    prepare_torch(seed=0, threads=1)
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        graphs = [mapped_graph(Path(name), size) for size in sizes()]
        scaler = fit_node_scaler((graph.node_feat for graph in graphs), scaling="log1p")
        by_name: dict[str, LayoutGraph] = {}
        files = []
        for graph in graphs:
            for number in range(NAMES_PER_SIZE):
                path = graph.file.path.with_name(f"{graph.file.name}-{number}.npz")
                by_name[str(path)] = graph
                files.append(replace(graph.file, path=path))

        def make(file: GraphFile) -> LayoutInputs:
            start = time.perf_counter()
            inputs = layout_inputs(by_name[str(file.path)], rule="hops-1", scaler=scaler)
            seconds.append(time.perf_counter() - start)
            return inputs

        before = resident_mib()
        take_steps(LRUCache(make), files)
        grown, taken = resident_mib() - before, list(seconds)
        some = [make(file) for file in files[::NAMES_PER_SIZE]]
        ready = {str(file.path): some[i // NAMES_PER_SIZE] for i, file in enumerate(files)}
        reads: list[str] = []

        def look_up(file: GraphFile) -> LayoutInputs:
            reads.append(file.name)
            return ready[str(file.path)]

        take_steps(LRUCache(look_up, size=unpacked_bytes), files)
        held, unpacked = (np.mean([size(i) for i in some]) for size in (bytes_held, unpacked_bytes))
    return [
        "# How often training reads a graph again",
        "",
        "Written by `python -m benchmarks.speed.graph_cache`. 200 graphs of the published sizes",
        f"of layout:nlp ({MEAN_NODES:,} nodes and {MEAN_CONFIGS:,} configs on average, up to",
        f"{MOST_NODES:,} nodes), pruned by `hops-1`, {N_STEPS:,} steps of one graph each, a cache",
        f"of {CACHE_BYTES >> 20:,} MiB.",
        "",
        "| configs counted as | MiB a graph | steps that read their graph anew |",
        "|---|---|---|",
        f"| unpacked values | {int(unpacked) >> 20} | {len(reads) / N_STEPS:.1%} |",
        f"| what is held | {int(held) >> 20} | {len(taken) / N_STEPS:.1%} |",
        "",
        f"Reading anew takes {np.mean(taken):.3f} s a graph, the store's checks aside. The process",
        f"grew by {grown:.0f} MiB, mapped files included.",
        "",
        f"Measured on {platform.machine()}, revision {revision()}.",
    ]


def resident_mib() -> float:
    """Return how much memory this process has now."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    path = PAGES / "graph_cache.md"
    write_text(path, "\n".join(measure()) + "\n")
    print(path)  # noqa: T201
