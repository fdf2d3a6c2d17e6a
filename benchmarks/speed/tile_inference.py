"""How long ranking a tile test set as large as the real one takes, by the models that are shipped.

Kernels are the sample's, enlarged, with random configs. A few files are read again and again, so
that making them takes no time.
"""

import tempfile
import time
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import table
from common.settings import SAMPLE
from data.graphs.graph import N_TILE_VALUES, TileGraph
from data.npz.write import write_npz
from data.read import read_tile
from data.tree import GraphFile, collection_named, find_graphs
from ensembles.diversify_picks import PickDiversity, diversify_scores
from models.config.recipe import Recipe, load_recipe
from models.train import load_model, train_model
from models.training.jobs import TrainJob

TILE = collection_named("tile:xla")
N_KERNELS, N_NODES, N_CONFIGS = 844, 40, 1_842
N_FILES = 24
RANK = 6  # of each of the three vectors of bounds
GOAL_S = 60
# Weights do not change how long a GNN takes, so that it is hardly trained; trees are all grown.
HARDLY = ("late_fusion_sage.training.steps=2",)


def random_configs(n_configs: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw (c, 24) tile configs: bounds up to 512 in powers of two, their sums and products."""
    bounds = 2.0 ** rng.integers(0, 10, (n_configs, 3, RANK))
    sums, products = bounds.sum(axis=2, keepdims=True), bounds.prod(axis=2, keepdims=True)
    parts = np.concatenate([bounds, sums, products], axis=2)
    return parts.reshape(n_configs, N_TILE_VALUES).astype(np.float32)


def write_kernel(folder: Path, kernel: TileGraph, n_configs: int) -> GraphFile:
    """Write a kernel as often side by side as gives about 40 nodes, with random configs."""
    copies = max(1, round(N_NODES / kernel.n_nodes))
    starts = kernel.n_nodes * np.arange(copies).repeat(len(kernel.edge_index))
    rng = np.random.default_rng(kernel.n_nodes)
    path = folder / f"{kernel.file.name}.npz"
    write_npz(
        path,
        {
            "node_feat": np.tile(kernel.node_feat, (copies, 1)),
            "node_opcode": np.tile(kernel.node_opcode, copies),
            "edge_index": np.tile(kernel.edge_index, (copies, 1)) + starts[:, None],
            "config_feat": random_configs(n_configs, rng),
            "config_runtime": np.zeros(n_configs, np.int64),
            "config_runtime_normalizers": np.ones(n_configs, np.int64),
        },
    )
    return GraphFile(TILE, "test", path.stem, path)


def train_files() -> list[GraphFile]:
    """List the sample's train kernels."""
    return find_graphs(SAMPLE, collections=(TILE,), splits=("train",))


def seconds_of(model: str, recipe: Recipe, files: list[GraphFile], folder: Path) -> float:
    """Read and rank every file, as `predict` does, after one that does not count."""
    run_dir = folder / model
    train_model(TrainJob(model, recipe, train_files(), 0, run_dir), TILE, resume=False)
    ranker = load_model(run_dir)
    ranker.score(read_tile(files[0]))
    start = time.perf_counter()
    for file in files:
        scores = ranker.score(read_tile(file))
        np.argsort(scores, kind="stable")
    return time.perf_counter() - start


def seconds_of_picks(recipe: Recipe, files: list[GraphFile]) -> float:
    """Read every file and choose its picks by scores that are there."""
    chosen = recipe.blend.pick_diversity_for("tile")
    if chosen is None:
        return 0.0
    scores = np.random.default_rng(0).normal(size=N_CONFIGS).astype(np.float32)
    start = time.perf_counter()
    for file in files:
        graph = read_tile(file)
        diversify_scores(graph, np.resize(scores, graph.n_configs), PickDiversity(*chosen))
    return time.perf_counter() - start


def report(n_kernels: int = N_KERNELS, n_configs: int = N_CONFIGS) -> list[str]:
    """Measure; return the section of speed.md."""
    recipe = load_recipe("cpu", HARDLY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kernels = map(read_tile, train_files()[: min(N_FILES, n_kernels)])
        few = [write_kernel(folder, kernel, n_configs) for kernel in kernels]
        files = list(islice(cycle(few), n_kernels))
        seconds: dict[str, float] = {
            model: seconds_of(model, recipe, files, folder / "runs") for model in recipe.tile.models
        }
        seconds["choice of picks"] = seconds_of_picks(recipe, files)
    rows = [[m, f"{s:.1f}", f"{1000 * s / n_kernels:.1f}"] for m, s in seconds.items()]
    return [
        "## Ranking a tile test set",
        "",
        f"{n_kernels} kernels of about {N_NODES} nodes with {n_configs:,} configs each, from npz",
        f"files to rankings, {recipe.threads} threads. The `cpu` recipe's models and the choice of",
        f"picks together take {sum(seconds.values()):.1f} s (goal: less than {GOAL_S}).",
        "",
        *table(["model", "seconds", "ms per kernel"], rows),
    ]
