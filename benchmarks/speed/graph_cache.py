"""How often a training step reads its graph anew, at the published sizes.

`python -m benchmarks.speed.graph_cache` writes docs/results/graph_cache.md. The graphs have the
sizes of layout:nlp:random; a tenth of them is made, each under ten names, their packed configs
mapped from files as those of the store are. Steps draw graphs as training does.
"""

import platform
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import PAGES, table
from benchmarks.speed.stages import write_graph
from common.atomic import write_text
from common.git import revision
from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.synthetic import GraphSize, published_graphs
from data.tree import GraphFile, collection_named
from features.scaling import fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs
from models.training.dataset import CACHE_BYTES, LRUCache, bytes_held
from models.training.device import prepare_torch

NAMES_PER_SIZE, N_STEPS = 10, 12_000  # steps as of the recipe `leaderboard`
WRITTEN_CONFIGS = 200  # of each size; the others are drawn from the same layouts


def mapped_graph(folder: Path, size: GraphSize) -> LayoutGraph:
    """Make a graph whose packed configs are mapped from a file below `folder`."""
    few = replace(size, n_configs=min(size.n_configs, WRITTEN_CONFIGS))
    graph = read_layout(write_graph(folder, few))
    rng = np.random.default_rng(size.n_nodes)
    choices = graph.configs.alphabets.sizes
    indices = rng.integers(choices, size=(size.n_configs, len(choices)))  # hardly two are equal
    path = folder / f"{size.name}.indices.npy"
    np.save(path, indices.astype(graph.configs.indices.dtype))
    configs = replace(graph.configs, indices=np.load(path, mmap_mode="r"))
    return replace(graph, configs=configs, runtime_ns=rng.integers(10**6, 10**7, size.n_configs))


def report(sizes: Sequence[GraphSize], n_steps: int, max_bytes: int = CACHE_BYTES) -> list[str]:
    """Ask a cache for the graphs of all steps; return the page's table."""
    seconds: list[float] = []
    held: dict[str, int] = {}
    prepare_torch(seed=0, threads=1)
    with tempfile.TemporaryDirectory() as name:
        graphs = [mapped_graph(Path(name), size) for size in sizes]
        scaler = fit_node_scaler((graph.node_feat for graph in graphs), scaling="log1p")
        by_name: dict[GraphFile, LayoutGraph] = {}
        for graph in graphs:
            for number in range(NAMES_PER_SIZE):
                path = graph.file.path.with_name(f"{graph.file.name}-{number}.npz")
                by_name[replace(graph.file, path=path)] = graph

        def make(file: GraphFile) -> LayoutInputs:
            start = time.perf_counter()
            inputs = layout_inputs(by_name[file], rule="hops-1", scaler=scaler)
            seconds.append(time.perf_counter() - start)
            held[file.name] = bytes_held(inputs)
            return inputs

        cache, files = LRUCache(make, max_bytes=max_bytes), list(by_name)
        for step in range(n_steps):
            cache(files[np.random.default_rng([0, step]).permutation(len(files))[0]])
    mib = np.mean(list(held.values())) / 2**20
    anew = [f"{len(seconds) / n_steps:.1%}", f"{np.mean(seconds):.3f}"]
    header = ["steps", "MiB a graph", "steps that read their graph anew", "s to read anew"]
    return table(header, [[f"{n_steps:,}", f"{mib:.1f}", *anew]])


PAGE = f"""# How often training reads a graph again

Written by `python -m benchmarks.speed.graph_cache`. Graphs of the sizes of layout:nlp:random's
train split, pruned by `hops-1`; steps of one graph each, a cache of {CACHE_BYTES >> 20:,} MiB.
"""

if __name__ == "__main__":
    nlp = [collection_named("layout:nlp:random")]
    sizes = [graph.size for graph in published_graphs(nlp, ["train"], 1 / NAMES_PER_SIZE)]
    measured = f"Measured on {platform.machine()}, revision {revision()}."
    lines = [PAGE, *report(sizes, N_STEPS), "", measured]
    write_text(PAGES / "graph_cache.md", "\n".join(lines) + "\n")
    print(PAGES / "graph_cache.md")  # noqa: T201
