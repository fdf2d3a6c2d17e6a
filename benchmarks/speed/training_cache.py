"""What training reads at the published sizes: graphs come from a cache, or from PyG's DataLoader.

Layout graphs have the sizes of layout:nlp:random; a tenth of them is made, each under ten names,
their packed configs mapped from files as those of the store are; steps draw graphs as training
does. Configs come by the pipeline's own steps, and by PyG.
"""

import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import render
from benchmarks.speed.measuring import in_turn
from common.settings import SAMPLE
from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.synthetic.plans import GraphSize, published_graphs
from data.synthetic.write import write_sized
from data.tree import GraphFile, collection_named
from features.scaling import fit_node_scaler
from models.layout.inputs import LayoutInputs, layout_inputs
from models.pyg import ConfigSampler, TpuGraph, TpuGraphsLayout
from models.training.dataset import CACHE_BYTES, LRUCache, bytes_held
from models.training.device import prepare_torch

NAMES_PER_SIZE, N_DRAWN = 10, 12_000  # steps as of the recipe `leaderboard`
WRITTEN_CONFIGS = 200  # of each size; the others are drawn from the same layouts
STEP_CONFIGS, LOADER_ROUNDS, BATCHES, LOADED_SHARE = 64, 51, (8, 32), 1 / 20


def mapped_graph(folder: Path, size: GraphSize) -> LayoutGraph:
    """Make a graph whose packed configs are mapped from a file below `folder`."""
    few = replace(size, n_configs=min(size.n_configs, WRITTEN_CONFIGS))
    graph = read_layout(write_sized(folder, few))
    rng = np.random.default_rng(size.n_nodes)
    choices = graph.configs.alphabets.sizes
    indices = rng.integers(choices, size=(size.n_configs, len(choices)))  # hardly two are equal
    path = folder / f"{size.name}.indices.npy"
    np.save(path, indices.astype(graph.configs.indices.dtype))
    configs = replace(graph.configs, indices=np.load(path, mmap_mode="r"))
    return replace(graph, configs=configs, runtime_ns=rng.integers(10**6, 10**7, size.n_configs))


def report_graphs(
    sizes: Sequence[GraphSize] = (), n_steps: int = N_DRAWN, max_bytes: int = CACHE_BYTES
) -> str:
    """Ask a cache for the graphs of all steps; return the section."""
    sizes = sizes or [
        graph.size
        for graph in published_graphs(
            [collection_named("layout:nlp:random")], ["train"], 1 / NAMES_PER_SIZE
        )
    ]
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
    anew = [f"{len(seconds) / n_steps:.1%}", f"{np.mean(seconds):.3f}"]
    mib = np.mean(list(held.values())) / 2**20
    row = [f"{n_steps:,}", f"{mib:.1f}", *anew]
    return render("graph_cache", cache_mib=max_bytes >> 20, row=row)


def ways_to_read(train: TpuGraphsLayout) -> dict[str, Callable[[], object]]:
    """Return ways to read some configs of each graph once; `train` scales its nodes."""
    from torch.utils.data import DataLoader
    from torch_geometric.loader import DataLoader as Batches

    rule, scaler, rng = train.prune, train.scaler, np.random.default_rng(0)
    assert scaler
    cache = LRUCache(lambda file: layout_inputs(read_layout(file), rule=rule, scaler=scaler))

    def as_steps_do() -> None:
        for place in rng.permutation(len(train.files)):
            inputs = cache(train.files[place])
            drawn = rng.permutation(len(inputs.first))[:STEP_CONFIGS]
            inputs.symbols(drawn), inputs.runtimes(drawn)

    loaders: dict[str, DataLoader[TpuGraph]] = {
        "one by one": DataLoader(train, batch_size=None, shuffle=True)
    }
    loaders |= {f"{n} a batch": Batches(train, n, shuffle=True) for n in BATCHES}
    loaders["8 a batch, drawn already"] = Batches(list(train), 8, shuffle=True)
    return {"the pipeline": as_steps_do} | {
        way: partial(deque, loader, 0) for way, loader in loaders.items()
    }


def measure_loader(name: str, root: Path, store: Path | None, rounds: int) -> list[list[str]]:
    """Return lines of the table: graphs and configs a second, and how that compares."""
    train = TpuGraphsLayout(root, store=store, prune="hops-1", scaling="log1p-standardise")
    train.transform = ConfigSampler(STEP_CONFIGS)
    times = in_turn(ways_to_read(train), rounds, warm_up=True, clock=time.process_time)
    rates = {way: len(train) / np.median(seconds) for way, seconds in times.items()}
    of_own = {way: rate / rates["the pipeline"] for way, rate in rates.items()}
    return [
        [f"{name}, {way}", f"{rate:,.0f}", f"{rate * STEP_CONFIGS:,.0f}", f"{of_own[way]:.2f}"]
        for way, rate in rates.items()
    ]


def report_loader() -> str:
    """Measure; return the section."""
    prepare_torch(seed=0, threads=1)
    of_size = published_graphs([collection_named("layout:nlp:random")], ["train"], LOADED_SHARE)
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder)
        for graph in of_size:
            write_sized(large, replace(graph.size, n_configs=WRITTEN_CONFIGS))
        rows = measure_loader("published sizes", large, large / "store", LOADER_ROUNDS)
    rows += measure_loader("the sample", SAMPLE, None, LOADER_ROUNDS)
    return render("pyg_loader", rows=rows, n_configs=STEP_CONFIGS)
