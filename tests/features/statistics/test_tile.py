"""Tile statistics against a loop over configs and dimensions that a reader can follow."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from common.settings import SAMPLE
from data.graph_store.stored_graph import read_tile
from data.graphs.graph import TileGraph
from data.graphs.node_columns import ELEMENT_BYTES
from data.tree import collection_named, find_graphs
from features.statistics.tile import (
    TILE_DETAILS,
    TILE_STATISTICS,
    tile_details,
    tile_statistics,
)
from tests.features.graphs import check_by_name, node_bytes, random_tile_graph, sizes_of
from tests.features.statistics.test_program import slow_flops

Fast = Callable[[TileGraph], NDArray[np.float32]]
Slow = Callable[[TileGraph, NDArray[np.float32]], dict[str, float]]
OPCODES = {"convolution": 26, "dot": 34, "reshape": 75, "parameter": 63}


def slow_output(graph: TileGraph) -> int:
    """Return the first of the largest roots, or of the largest nodes if no node is a root."""
    roots = [n for n in range(graph.n_nodes) if graph.node_feat[n, 0] > 0]
    best = None
    for node in roots or range(graph.n_nodes):
        if best is None or node_bytes(graph, node) > node_bytes(graph, best):
            best = node
    assert best is not None
    return best


def slow_statistics(graph: TileGraph, config: NDArray[np.float32]) -> dict[str, float]:
    found: dict[str, float] = {}
    names = (*map(str, range(6)), "sum", "product")
    for part, values in zip(("kernel", "output", "input"), config.reshape(3, 8), strict=True):
        for name, value in zip(names, values.tolist(), strict=True):
            found[f"log_{part}_bounds_{name}"] = math.log1p(abs(value))
    output = graph.node_feat[slow_output(graph)]
    sizes = sizes_of(graph, slow_output(graph))
    rank = len(sizes)
    steps, covered = 1, 1.0
    for dimension in range(6):
        size = max(sizes[dimension], 1) if dimension < rank else 1
        bound = config[8 + dimension] if config[8 + dimension] > 0 else size
        steps *= math.ceil(size / bound)
        covered *= float(bound)
    elements = math.prod(max(size, 1) for size in sizes)
    found["log_steps"] = math.log(steps)
    found["log_waste"] = math.log(steps * covered / elements)
    minor = int(output[134])
    minor_size = max(sizes[minor], 1) if rank else 1
    minor_bound = config[8 + minor] if config[8 + minor] > 0 else minor_size
    found["minor_bound_share"] = min(float(minor_bound) / minor_size, 1.0)
    found["log_nodes"] = math.log1p(graph.n_nodes)
    found["log_output_elements"] = math.log1p(output[28])
    found["log_output_bytes"] = math.log1p(node_bytes(graph, slow_output(graph)))
    parameters = [n for n in range(graph.n_nodes) if graph.node_opcode[n] == 63]
    found["log_parameter_bytes"] = math.log1p(sum(node_bytes(graph, n) for n in parameters))
    for i in range(6):
        found[f"log_output_dimension_{i}"] = math.log1p(sizes[i]) if i < rank else 0.0
    for name, number in OPCODES.items():
        found[f"log_count_{name}"] = math.log1p((graph.node_opcode == number).sum())
    return found


def slow_details(graph: TileGraph, config: NDArray[np.float32]) -> dict[str, float]:
    root = slow_output(graph)
    output = graph.node_feat[root]
    sizes = [float(max(size, 1)) for size in sizes_of(graph, root)]
    rank = len(sizes)
    sizes += [1.0] * (6 - rank)
    bounds = [float(config[8 + i]) if config[8 + i] > 0 else sizes[i] for i in range(6)]
    tiles = [math.ceil(size / bound) for size, bound in zip(sizes, bounds, strict=True)]
    volume, steps = math.prod(bounds), math.prod(tiles)
    kind = next(i for i in range(19) if output[2 + i])
    found = {
        "log_tile_volume": math.log(volume),
        "log_tile_bytes": math.log1p(volume * ELEMENT_BYTES[kind]),
    }
    growth, whole = 1.0, [1.0, 1.0]
    for place, tile in enumerate((128, 8)):
        if place < rank:
            bound = bounds[int(output[134 + place])]
            growth *= math.ceil(bound / tile) * tile / bound
            whole[place] = float(bound % tile == 0)
    found["log_tile_register_waste"] = math.log(growth)
    found["minor_bound_is_whole"], found["second_bound_is_whole"] = whole
    found |= {f"log_tiles_{i}": math.log(count) for i, count in enumerate(tiles)}
    inputs = math.prod(float(value) for value in config[16:22] if value > 0)
    kernel = math.prod(float(value) for value in config[:6] if value > 0)
    found["log_input_volume"], found["log_kernel_volume"] = math.log(inputs), math.log(kernel)
    parameters = [node for node in range(graph.n_nodes) if graph.node_opcode[node] == 63]
    parameter_bytes = sum(node_bytes(graph, node) for node in parameters)
    elements = sum(float(graph.node_feat[node, 28]) for node in parameters)
    read = steps * (inputs + kernel) * parameter_bytes / max(elements, 1)
    moved = 1 + steps * volume * ELEMENT_BYTES[kind] + read
    flops = 1 + sum(
        slow_flops(graph, n) for n in range(graph.n_nodes) if graph.node_opcode[n] in (26, 34)
    )
    found["log_moved_bytes"] = math.log(moved)
    found["log_operand_reuse"] = math.log((1 + read) / (1 + parameter_bytes))
    found["log_flops_per_byte"] = math.log(flops / moved)
    found["log_flops_per_step"] = math.log(flops / steps)
    return found


def check(
    table: NDArray[np.float32], names: tuple[str, ...], slow: Slow, graph: TileGraph
) -> NDArray[np.float32]:
    assert table.dtype == np.float32
    for row, config in zip(table, graph.config_feat, strict=True):
        check_by_name(names, row, slow(graph, config))
    return table


@pytest.mark.parametrize(
    ("statistics", "names", "slow", "at_least"),
    [
        (tile_statistics, TILE_STATISTICS, slow_statistics, 3),
        (tile_details, TILE_DETAILS, slow_details, 2),
    ],
)
def test_kernels_equal_the_loop(
    statistics: Fast, names: tuple[str, ...], slow: Slow, at_least: int
) -> None:
    """And none of the statistics is idle: over the kernels, each takes several values."""
    graphs = [random_tile_graph(seed) for seed in range(40)]
    together = np.concatenate([check(statistics(g), names, slow, g) for g in graphs])
    for column, name in enumerate(names):
        assert len(np.unique(together[:, column])) >= at_least, name
    files = find_graphs(SAMPLE, collections=(collection_named("tile:xla"),), splits=("valid",))
    for file in files[::4]:
        graph = read_tile(file)
        check(statistics(graph), names, slow, graph)
