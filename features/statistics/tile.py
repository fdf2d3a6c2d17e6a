"""Hand-crafted statistics of tile configs: one row per config of a kernel.

The compiler's vector has six bounds each for the kernel (a convolution's window), the output and
the inputs, with their sum and product. The output bounds give the number of tiles that cover the
output, and the waste of the last tiles. The meaning of the inputs' bounds differs between kernels.
Volumes are products of the known bounds, which is enough to order the configs of one kernel.
"""

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_TILE_VALUES, TileGraph
from data.graphs.node_columns import OPCODES, RANK_MAX, SHAPE_PRODUCT
from features.padding import dimension_sizes, minor_to_major
from features.statistics.layout import TILE_MINOR, TILE_SECOND, element_bytes, output_bytes
from features.statistics.program import node_flops

KERNEL_BOUNDS, OUTPUT_BOUNDS, INPUT_BOUNDS = slice(0, 6), slice(8, 14), slice(16, 22)
KERNEL_OPCODES = ("convolution", "dot", "reshape", "parameter")
TILE_STATISTICS = (
    *(
        f"log_{part}_bounds_{name}"
        for part in ("kernel", "output", "input")
        for name in (*range(RANK_MAX), "sum", "product")
    ),
    *("log_steps", "log_waste", "minor_bound_share"),
    *("log_nodes", "log_output_elements", "log_output_bytes", "log_parameter_bytes"),
    *(f"log_output_dimension_{i}" for i in range(RANK_MAX)),
    *(f"log_count_{name}" for name in KERNEL_OPCODES),
)
TILE_DETAILS = (
    *("log_tile_volume", "log_tile_bytes", "log_tile_register_waste"),
    *("minor_bound_is_whole", "second_bound_is_whole"),
    *(f"log_tiles_{i}" for i in range(RANK_MAX)),
    *("log_input_volume", "log_kernel_volume", "log_moved_bytes", "log_operand_reuse"),
    *("log_flops_per_byte", "log_flops_per_step"),
)


def tile_statistics(graph: TileGraph) -> NDArray[np.float32]:
    """Compute the statistics in TILE_STATISTICS of all configs, (c, f)."""
    root, bytes_of = output_node(graph), output_bytes(graph.node_feat)
    dimensions, effective, tiles = output_tiles(graph, root)
    log_steps = np.log(tiles).sum(axis=1)
    log_waste = log_steps + np.log(effective).sum(axis=1) - np.log(dimensions).sum()
    minor = max(int(minor_to_major(graph.node_feat[root : root + 1])[0, 0]), 0)
    minor_share = (effective[:, minor] / dimensions[minor]).clip(0, 1)
    constants = [
        graph.n_nodes,
        graph.node_feat[root, SHAPE_PRODUCT],
        bytes_of[root],
        bytes_of[graph.node_opcode == OPCODES["parameter"]].sum(),
        *np.maximum(dimension_sizes(graph.node_feat[root : root + 1])[0], 0),
        *((graph.node_opcode == OPCODES[name]).sum() for name in KERNEL_OPCODES),
    ]
    columns = [
        np.log1p(np.abs(graph.config_feat[:, :N_TILE_VALUES])),
        np.stack([log_steps, log_waste, minor_share], axis=1),
        np.tile([np.log1p(np.maximum(value, 0)) for value in constants], (graph.n_configs, 1)),
    ]
    return np.concatenate(columns, axis=1).astype(np.float32)


def tile_details(graph: TileGraph) -> NDArray[np.float32]:
    """Compute the statistics in TILE_DETAILS of all configs, (c, f)."""
    root = output_node(graph)
    _, effective, tiles = output_tiles(graph, root)
    bounds = graph.config_feat.astype(np.float64)
    log_steps = np.log(tiles).sum(axis=1)
    volume = effective.prod(axis=1)
    bytes_of_element = float(element_bytes(graph.node_feat)[root])
    sizes = [
        np.where(bounds[:, part] > 0, bounds[:, part], 1).prod(axis=1)
        for part in (INPUT_BOUNDS, KERNEL_BOUNDS)
    ]
    is_parameter = graph.node_opcode == OPCODES["parameter"]
    parameter_bytes = output_bytes(graph.node_feat)[is_parameter].sum()
    elements = graph.node_feat[is_parameter, SHAPE_PRODUCT].astype(np.float64).sum()
    read = np.exp(log_steps) * (sizes[0] + sizes[1]) * parameter_bytes / max(elements, 1.0)
    log_bytes = np.log1p(np.exp(log_steps) * volume * bytes_of_element + read)
    log_flops = np.log1p(max(node_flops(graph).sum(), 0))
    waste, minor_whole, second_whole = _register_fit(graph.node_feat[root], effective)
    columns = [
        np.log(volume),
        np.log1p(volume * bytes_of_element),
        waste,
        minor_whole,
        second_whole,
        *np.log(tiles).T,
        *np.log(sizes),
        log_bytes,
        np.log1p(read) - np.log1p(parameter_bytes),
        log_flops - log_bytes,
        log_flops - log_steps,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _register_fit(
    output: NDArray[np.float32], effective: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    # How output tiles (c, 6) fit the 8 x 128 registers. A dimension that the output lacks fits.
    growth = np.zeros(len(effective))
    is_whole = []
    order = minor_to_major(output[None])[0]
    for dimension, tile in zip(order[:2], (TILE_MINOR, TILE_SECOND), strict=True):
        size = effective[:, dimension] if dimension >= 0 else np.full(len(effective), float(tile))
        growth += np.log(np.ceil(size / tile) * tile / size)
        is_whole.append(size % tile == 0)
    return growth, is_whole[0], is_whole[1]


def output_tiles(
    graph: TileGraph, root: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return how a kernel's configs cut its output into tiles.

    Returns:
        Sizes of the dimensions (6,), bounds of the tiles (c, 6), and numbers of tiles (c, 6). A
        missing dimension has size 1. A missing bound is the whole dimension.
    """
    dimensions = np.maximum(dimension_sizes(graph.node_feat[root : root + 1])[0], 1)
    bounds = graph.config_feat[:, OUTPUT_BOUNDS].astype(np.float64)
    bounds = np.where(bounds > 0, bounds, dimensions)
    return dimensions, bounds, np.ceil(dimensions / bounds)


def output_node(graph: TileGraph) -> int:
    """Return the position of the root with the largest output."""
    bytes_of = output_bytes(graph.node_feat)
    is_root = graph.node_feat[:, 0] > 0
    candidates = np.flatnonzero(is_root) if is_root.any() else np.arange(graph.n_nodes)
    return int(candidates[np.argmax(bytes_of[candidates])])
