"""The layout GNN that is shipped beside the competition's winning model: a step, and inference.

Both by their recipes (configs/cpu.toml, configs/reference.toml), float32, one thread, on the same
configs of the same pruned graph.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import table
from benchmarks.speed.layout_model import RULE, make_graph, ratio_cells
from benchmarks.speed.measuring import in_turn
from features.scaling import fit_node_scaler
from models.config.own_models import imported
from models.config.recipe import Recipe, load_recipe
from models.layout.inputs import LayoutInputs, layout_inputs
from models.registry import NETWORKS
from models.training.device import prepare_torch
from models.training.losses import LOSSES

SIZES = ((500, 64), (2_000, 64), (5_000, 64))
N_SCORED = 256  # configs that inference ranks
MIN_STEP, MIN_INFERENCE = 3, 5
HEADER = (
    *("n, c", "step s: ours", "winning", "times faster"),
    *("inference s: ours", "winning", "times faster"),
)


def recipes() -> dict[str, Recipe]:
    """Return the recipe of each model; the winning one scores each config once, not ten times."""
    once = load_recipe("reference", ["tgraph.permutations=1"])
    return {"cross_config_sage": load_recipe("cpu"), "tgraph": once}


def step_of(model: Any, inputs: LayoutInputs, loss: str, n_configs: int) -> Callable[[], None]:
    """Return a forward and backward pass over the first configs of a graph."""
    sample = np.arange(n_configs)
    runtime_ns = torch.from_numpy(inputs.runtime_ns[sample])

    def step() -> None:
        model.train()
        model.zero_grad()
        LOSSES[loss](model(inputs, sample), runtime_ns).backward()

    return step


def score_all(model: Any, inputs: LayoutInputs) -> object:
    """Score all configs of a graph."""
    return model.eval().score_all(inputs)


def measure(n_nodes: int, n_configs: int, n_scored: int) -> list[str]:
    """Measure one size; return the cells of its line."""
    prepare_torch(seed=0, threads=1)
    steps, inferences = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        graph = make_graph(n_nodes, n_scored, Path(folder))
        for name, recipe in recipes().items():
            config = getattr(recipe, name)
            scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
            inputs = layout_inputs(
                graph, rule=RULE, scaler=scaler, with_statistics=config.statistics
            )
            model = imported(NETWORKS[name][1])(config)
            steps[name] = step_of(model, inputs, config.loss, n_configs)
            inferences[name] = partial(score_all, model, inputs)
    size = f"{len(inputs.opcode):,}, {n_configs}"
    seconds = [in_turn(work, 1, warm_up=True) for work in (steps, inferences)]
    return [size, *(cell for each in seconds for cell in ratio_cells(each)[:3])]


def report(sizes: Sequence[tuple[int, int]] = SIZES, *, n_scored: int = N_SCORED) -> list[str]:
    """Measure; return the section of speed.md."""
    return [
        "## The layout GNN that is shipped beside the winning model",
        "",
        "The `cpu` recipe's network beside the competition's winning one by `reference` (256 wide,",
        "instance norm over nodes, plain layers), float32, one thread, the same configs: a forward",
        f"and backward pass over c configs, and ranking {n_scored} configs, each scored once (the",
        "winners score ten times), after a round that does not count. Goals: a step",
        f"{MIN_STEP} times, inference {MIN_INFERENCE} times as fast. How well both rank:",
        "[layout_accuracy.md](layout_accuracy.md).",
        "",
        *table(HEADER, (measure(*size, n_scored) for size in sizes)),
    ]
