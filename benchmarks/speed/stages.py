"""What each stage costs as configs and nodes grow, and what workers gain of a whole `run`."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks import render
from benchmarks.speed import in_turn
from common.machine import granted
from common.metrics import kendall_tau
from common.settings import ROOT, SAMPLE
from data.graph_store.stored_graph import read_layout
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import GraphFile
from features.pruning import prune_layout_graph
from features.scaling import fit_node_scaler
from features.statistics.configs import statistics_of
from models.config.recipe import load_recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.training.device import prepare_torch
from models.training.losses import LOSSES

REPEATS = 3
BASE = GraphSize(2_000, 100, 500)
MORE_CONFIGS = (BASE, GraphSize(2_000, 100, 1_000), GraphSize(2_000, 100, 2_000))
MORE_NODES = (BASE, GraphSize(4_000, 200, 500), GraphSize(8_000, 400, 500))
ROUNDS = 5  # of whole runs
WORKERS = {"--workers 1": ("--workers", "1"), "default": ()}


def stages(file: GraphFile) -> dict[str, Callable[[], object]]:
    """Return each stage as a function of no arguments, on one graph's file."""
    recipe = load_recipe("cpu")
    config, rule = recipe.cross_config_sage, recipe.features.prune
    prepare_torch(seed=0, threads=recipe.n_threads)
    graph = read_layout(file)
    scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
    model = CrossConfigSage(config)
    read = model.reader(recipe.features, scaler)
    inputs = read(graph)
    sample = np.arange(config.configs_per_step)
    target = torch.from_numpy(inputs.runtime_ns[sample])

    def statistics() -> object:
        rows = np.arange(graph.n_configs)
        return statistics_of(graph, recipe.layout_boosting.statistics)(rows)

    def training_step() -> object:
        model.zero_grad()
        loss = LOSSES[config.loss](model(inputs, sample), target)
        loss.backward()
        return loss

    scores = np.random.default_rng(0).normal(size=graph.n_configs)
    return {
        "read and check": lambda: read_layout(file),
        "prune": lambda: prune_layout_graph(graph, rule=rule),
        "prepare for the GNN": lambda: read(graph),
        "statistics for boosting": statistics,
        f"GNN training step, {config.configs_per_step} configs": training_step,
        "GNN scores of all configs": lambda: model.score_all(inputs),
        "Kendall tau": lambda: kendall_tau(scores, graph.runtime_ns),
    }


def stage_rows(sizes: Sequence[GraphSize], axis: str, folder: Path) -> list[list[str]]:
    """Return a table's header and rows, measured; `axis` is the field of GraphSize that grows."""
    lengths = [getattr(size, axis) for size in sizes]
    by_size = [in_turn(stages(write_sized(folder, size)), REPEATS) for size in sizes]
    rows = [["stage", *(f"{length:,}" for length in lengths), "exponent"]]
    for name in by_size[0]:
        seconds = [min(found[name]) for found in by_size]
        exponent, _ = np.polyfit(np.log(lengths), np.log(seconds), 1)  # seconds = a · size^b
        rows.append([name, *(f"{value * 1e3:.1f} ms" for value in seconds), f"{exponent:.2f}"])
    return rows


def report() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        by_configs = stage_rows(MORE_CONFIGS, "n_configs", folder)
        by_nodes = stage_rows(MORE_NODES, "n_nodes", folder)
    return render("stages", by_configs=by_configs, by_nodes=by_nodes, repeats=REPEATS, base=BASE)


def submission(data: Path, recipe: str, words: tuple[str, ...]) -> bytes:
    """Run a recipe on a data folder, packing included; return its submission."""
    with tempfile.TemporaryDirectory() as name:
        store, out = Path(name) / "store", Path(name) / "run"
        what, where = ("--data", data, "--recipe", recipe), ("--store", store, "--out", out)
        command: list[str | Path] = [sys.executable, "-m", "pipeline", "run", *what, *where, *words]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        return (out / "submission.csv").read_bytes()


def report_workers(rounds: int = ROUNDS, data: Path = SAMPLE, recipe: str = "cpu") -> str:
    """Compare `run` with the default workers and with `--workers 1`: time, and the bytes."""
    made = set[bytes]()
    work = {
        name: lambda words=words: made.add(submission(data, recipe, words))
        for name, words in WORKERS.items()
    }
    seconds = in_turn(work, rounds)
    ratios = sorted(many / one for one, many in zip(*seconds.values(), strict=True))
    rows = [(name, f"{median(own):.0f}") for name, own in seconds.items()]
    told = {"ratio": median(ratios), "least": ratios[0], "most": ratios[-1], "same": len(made) == 1}
    n_cores = granted()[0]
    return render("workers", recipe=recipe, rounds=rounds, n_cores=n_cores, rows=rows, **told)
