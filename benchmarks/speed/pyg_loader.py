"""How fast configs reach a training step: by the pipeline's own steps, and through PyG.

Made-up layout graphs have the published sizes of layout:nlp:random; those of the sample are tiny.
"""

import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import render
from benchmarks.speed import in_turn
from common.settings import SAMPLE
from data.cache import LRUCache
from data.graph_store.stored_graph import read_layout
from data.synthetic.write import published_graphs, write_sized
from data.tree import collection_named
from features.pyg import ConfigSampler, TpuGraph, TpuGraphsLayout
from models.layout.inputs import layout_inputs
from models.training.device import prepare_torch

WRITTEN_CONFIGS = 200  # of each size
STEP_CONFIGS, LOADER_ROUNDS, BATCHES, LOADED_SHARE = 64, 51, (8, 32), 1 / 20


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
    times = in_turn(ways_to_read(train), rounds, clock=time.process_time)
    rates = {way: len(train) / np.median(seconds) for way, seconds in times.items()}
    of_own = {way: rate / rates["the pipeline"] for way, rate in rates.items()}
    return [
        [f"{name}, {way}", f"{rate:,.0f}", f"{rate * STEP_CONFIGS:,.0f}", f"{of_own[way]:.2f}"]
        for way, rate in rates.items()
    ]


def report() -> str:
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
