"""Tile statistics against a loop over configs and dimensions that a reader can follow."""

import math

import numpy as np
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

NAMES = (*TILE_STATISTICS, *TILE_DETAILS)
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
    """Return all statistics of one config (24,) by name."""
    root = slow_output(graph)
    output = graph.node_feat[root]
    rank = len(sizes_of(graph, root))
    sizes = [max(size, 1) for size in sizes_of(graph, root)] + [1] * (6 - rank)
    bounds = [float(config[8 + i]) if config[8 + i] > 0 else float(sizes[i]) for i in range(6)]
    tiles = [math.ceil(size / bound) for size, bound in zip(sizes, bounds, strict=True)]
    volume, steps = math.prod(bounds), math.prod(tiles)
    minor = int(output[134])
    parameters = [n for n in range(graph.n_nodes) if graph.node_opcode[n] == 63]
    parameter_bytes = sum(node_bytes(graph, node) for node in parameters)
    result = {
        "log_steps": math.log(steps),
        "log_waste": math.log(steps * volume / math.prod(sizes)),
        "minor_bound_share": min(bounds[minor] / sizes[minor], 1.0),
        "log_nodes": math.log1p(graph.n_nodes),
        "log_output_elements": math.log1p(output[28]),
        "log_output_bytes": math.log1p(node_bytes(graph, root)),
        "log_parameter_bytes": math.log1p(parameter_bytes),
    }
    names = (*map(str, range(6)), "sum", "product")
    for part, values in zip(("kernel", "output", "input"), config.reshape(3, 8), strict=True):
        for name, value in zip(names, values.tolist(), strict=True):
            result[f"log_{part}_bounds_{name}"] = math.log1p(abs(value))
    for i in range(6):
        size = sizes_of(graph, root)[i] if i < rank else 0
        result[f"log_output_dimension_{i}"] = math.log1p(size)
        result[f"log_tiles_{i}"] = math.log(tiles[i])
    for name, number in OPCODES.items():
        result[f"log_count_{name}"] = math.log1p((graph.node_opcode == number).sum())
    growth, is_whole = 1.0, [1.0, 1.0]
    for place, tile in enumerate((128, 8)):
        if place < rank:
            bound = bounds[int(output[134 + place])]
            growth *= math.ceil(bound / tile) * tile / bound
            is_whole[place] = float(bound % tile == 0)
    result["log_tile_register_waste"] = math.log(growth)
    result["minor_bound_is_whole"], result["second_bound_is_whole"] = is_whole
    element = ELEMENT_BYTES[next(i for i in range(19) if output[2 + i])]
    inputs = math.prod(float(value) for value in config[16:22] if value > 0)
    kernel = math.prod(float(value) for value in config[:6] if value > 0)
    elements = sum(float(graph.node_feat[node, 28]) for node in parameters)
    read = steps * (inputs + kernel) * parameter_bytes / max(elements, 1)
    moved = 1 + steps * volume * element + read
    heavy = [n for n in range(graph.n_nodes) if graph.node_opcode[n] in (26, 34)]
    flops = 1 + sum(slow_flops(graph, node) for node in heavy)
    return result | {
        "log_tile_volume": math.log(volume),
        "log_tile_bytes": math.log1p(volume * element),
        "log_input_volume": math.log(inputs),
        "log_kernel_volume": math.log(kernel),
        "log_moved_bytes": math.log(moved),
        "log_operand_reuse": math.log((1 + read) / (1 + parameter_bytes)),
        "log_flops_per_byte": math.log(flops / moved),
        "log_flops_per_step": math.log(flops / steps),
    }


def check(graph: TileGraph) -> NDArray[np.float32]:
    """Compare the statistics of all configs, in the order of NAMES, with the slow ones."""
    table = np.concatenate([tile_statistics(graph), tile_details(graph)], axis=1)
    assert table.dtype == np.float32
    for row, config in zip(table, graph.config_feat, strict=True):
        check_by_name(NAMES, row, slow_statistics(graph, config))
    return table


def test_kernels_equal_the_loop() -> None:
    """And none of the statistics is idle: over the kernels, each takes several values."""
    table = np.concatenate([check(random_tile_graph(seed)) for seed in range(40)])
    for column, name in enumerate(NAMES):
        assert len(np.unique(table[:, column])) >= (3 if name in TILE_STATISTICS else 2), name
    files = find_graphs(SAMPLE, collections=(collection_named("tile:xla"),), splits=("valid",))
    for file in files[::4]:
        check(read_tile(file))
