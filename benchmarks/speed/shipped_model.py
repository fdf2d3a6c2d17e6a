"""The layout GNN that is shipped beside the competition's winning model: a step, and inference.

Both by their recipes (configs/cpu.toml, configs/reference.toml), float32, one thread, on the same
configs of the same pruned graph. `python -m benchmarks.speed.shipped_model` prints the section.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.speed.layout_model import (
    KEPT_PER_CONFIGURABLE,
    NODES_PER_CONFIGURABLE,
    RULE,
)
from benchmarks.speed.stages import write_graph
from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.synthetic import GraphSize
from features.scaling import fit_node_scaler
from models.config.own_models import imported
from models.config.recipe import Recipe, load_recipe
from models.layout.inputs import LayoutInputs, layout_inputs
from models.registry import NETWORKS
from models.training.loop import prepare_torch
from models.training.losses import LOSSES

RECIPES = {"cross_config_sage": "cpu", "reference_sage": "reference"}
SIZES = ((500, 64), (2_000, 64), (5_000, 64))
N_SCORED = 256  # configs that inference ranks
MIN_STEP, MIN_INFERENCE = 3, 5


@dataclass(frozen=True)
class Timings:
    """Best and median of how many times faster ours is, and the best seconds of both."""

    ours_s: float
    winning_s: float
    best: float
    middle: float

    def cells(self) -> list[str]:
        """Return them as cells of a table."""
        return [
            f"{self.ours_s:.2f}",
            f"{self.winning_s:.2f}",
            f"{self.best:.1f}",
            f"{self.middle:.1f}",
        ]


def make_graph(n_nodes: int, n_configs: int, folder: Path) -> LayoutGraph:
    """Make a graph that pruning leaves about `n_nodes` nodes of."""
    k = max(4, round(n_nodes / KEPT_PER_CONFIGURABLE))
    return read_layout(write_graph(folder, GraphSize(NODES_PER_CONFIGURABLE * k, k, n_configs)))


def recipes() -> dict[str, Recipe]:
    """Return the recipe of each model; the winning one scores each config once, not ten times."""
    once = ["reference_sage.permutations=1"]
    return {
        model: load_recipe(name, once if name == "reference" else [])
        for model, name in RECIPES.items()
    }


def compare(work: dict[str, Callable[[], Any]], rounds: int) -> Timings:
    """Time both models in turn, after one round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - start)
    ours, winning = (seconds[name] for name in RECIPES)
    return Timings(
        min(ours), min(winning), min(winning) / min(ours), median(winning) / median(ours)
    )


def step_of(model: Any, inputs: LayoutInputs, loss: str, n_configs: int) -> Callable[[], None]:
    """Return a forward and backward pass over the first configs of a graph."""
    sample = np.arange(n_configs)
    runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])

    def step() -> None:
        model.train()
        model.zero_grad()
        LOSSES[loss](model(inputs, sample), runtime_ns).backward()

    return step


def inference_of(model: Any, inputs: LayoutInputs) -> Callable[[], object]:
    """Return the scoring of all configs of a graph."""
    return lambda: model.eval().score_all(inputs)


def measure(n_nodes: int, n_configs: int, *, rounds: int) -> list[str]:
    """Measure one size; return the cells of its line."""
    prepare_torch(seed=0, threads=1)
    with tempfile.TemporaryDirectory() as folder:
        graph = make_graph(n_nodes, N_SCORED, Path(folder))
        steps, inferences = {}, {}
        for name, recipe in recipes().items():
            config = getattr(recipe, name)
            scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
            inputs = layout_inputs(
                graph, rule=RULE, scaler=scaler, with_statistics=config.statistics
            )
            model = imported(NETWORKS[name][1])(config)
            steps[name] = step_of(model, inputs, config.loss, n_configs)
            inferences[name] = inference_of(model, inputs)
        step, inference = compare(steps, rounds), compare(inferences, rounds)
    size = f"{len(inputs.opcode):,}, {n_configs}"
    return [size, *step.cells(), *inference.cells()]


def report(sizes: Sequence[tuple[int, int]] = SIZES, *, rounds: int = 1) -> list[str]:
    """Measure; return the section of speed.md."""
    lines = [
        "## The layout GNN that is shipped beside the winning model",
        "",
        "The `cpu` recipe's network beside the competition's winning one by `reference` (256 wide,",
        "instance norm over nodes, plain layers), float32, one thread, the same configs: a forward",
        f"and backward pass over c configs, and ranking {N_SCORED} configs, each scored once",
        f"(the winners score ten times). Rounds in turn: {rounds}, after one that does not count.",
        f"Goals: a step {MIN_STEP} times, inference {MIN_INFERENCE} times as fast. How well",
        "both rank: docs/results/layout_accuracy.md.",
        "",
        "| n, c | step s: ours | winning | times faster: best | median "
        "| inference s: ours | winning | times faster: best | median |",
        "|---|" + "---:|" * 8,
    ]
    for n_nodes, n_configs in sizes:
        lines.append(f"| {' | '.join(measure(n_nodes, n_configs, rounds=rounds))} |")
    return lines


def main() -> None:
    """Measure; print the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    print("\n".join(report(rounds=parser.parse_args().rounds)))  # noqa: T201


if __name__ == "__main__":
    main()
