"""How many configs the layout GNN should score at once: the same scores, at different speeds."""

import tempfile
from functools import partial
from pathlib import Path

from benchmarks.speed.stages import shortest_s, write_graph
from data.packing.npz_graphs import read_layout
from data.synthetic import GraphSize
from features.scaling import fit_node_scaler
from models.config.recipe import load_recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inference import chunk_for, score_all
from models.layout.inputs import layout_inputs
from models.training.loop import prepare_torch

LARGE = GraphSize(20_000, 800, 256)
CHUNKS = (8, 16, 32, 64, 128)


def report() -> list[str]:
    """Measure; return the section of RESULTS.md."""
    recipe = load_recipe("cpu")
    prepare_torch(seed=0, threads=recipe.threads)
    with tempfile.TemporaryDirectory() as name:
        graph = read_layout(write_graph(Path(name), LARGE))
    scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
    inputs = layout_inputs(graph, rule=recipe.features.prune, scaler=scaler)
    model = CrossConfigSage(recipe.cross_config_sage).eval()
    chosen = chunk_for(inputs, recipe.cross_config_sage)
    lines = [
        "## Configs scored at once",
        "",
        f"The `cpu` recipe's GNN on {len(inputs.opcode):,} kept nodes and {LARGE.n_configs}",
        f"configs; the recipe's choice for this graph is {chosen}.",
        "",
        "| configs at once | MiB per tensor | seconds |",
        "|---:|---:|---:|",
    ]
    for chunk in CHUNKS:
        seconds = shortest_s(partial(score_all, model, inputs, chunk_configs=chunk))
        mib = len(inputs.opcode) * chunk * recipe.cross_config_sage.hidden * 4 / 2**20
        lines.append(f"| {chunk} | {mib:.0f} | {seconds:.2f} |")
    return lines
