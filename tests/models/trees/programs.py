"""Programs with made-up costs, and config-column trees that learned them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.accuracy.tasks import write_configs
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import SHAPE_PRODUCT
from features.statistics.configs import statistics_names, statistics_of
from models.config.recipe import Recipe
from models.config.trees import ConfigColumnsConfig
from models.registry import TrainJob
from models.trees.config_columns import (
    ConfigColumnsRanker,
    load_config_columns,
    train_config_columns,
)

NAME = "config_columns_boosting"


def trained(*learned: LayoutGraph, folder: Path, rounds: int = 40) -> ConfigColumnsRanker:
    config = ConfigColumnsConfig(num_boost_round=rounds)
    recipe = Recipe(threads=1, config_columns_boosting=config)
    train_config_columns(TrainJob(NAME, recipe, [graph.file for graph in learned], 0, folder))
    return load_config_columns(NAME, folder, recipe)


def measured(program: LayoutGraph, cost: np.ndarray, folder: Path, at_most: int) -> LayoutGraph:
    """The program with runtimes that grow with a cost (c,), and its first distinct configs."""
    runtime_ns = 1e6 * (1 + (cost - cost.min()) / np.ptp(cost))
    changed = replace(program, runtime_ns=runtime_ns.astype(np.int64))
    return read_layout(write_configs(changed, np.arange(at_most), folder, "train"))


def costs(program: LayoutGraph) -> np.ndarray:
    """One statistic of each config; (c,)."""
    which = statistics_names("layout", "all").index("fixed_operand_copied_bytes")
    return statistics_of(program, "all")(np.arange(program.n_configs))[:, which]


def resized(program: LayoutGraph, factor: float, n_fewer_edges: int = 0) -> LayoutGraph:
    """The program in another size."""
    features = program.node_feat.copy()
    features[:, SHAPE_PRODUCT] *= factor
    edges = program.edge_index[n_fewer_edges:]
    name = f"{program.file.name}_{factor:g}"
    file = replace(program.file, name=name)
    return replace(program, file=file, node_feat=features, edge_index=edges)


def other_program(program: LayoutGraph) -> LayoutGraph:
    """A program with other opcodes, which is no sibling."""
    opcodes = program.node_opcode.copy()
    opcodes[program.node_config_ids] += 1
    file = replace(program.file, name="other")
    return replace(program, node_opcode=opcodes, file=file)
