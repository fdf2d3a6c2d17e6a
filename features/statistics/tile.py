"""Hand-crafted statistics of tile configs: one row per config of a kernel.

The compiler's vector holds, for kernel, output and inputs, six bounds, their sum and product.
From the output bounds follow how many tiles cover the output, and what the last tiles waste.
"""

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_TILE_VALUES, TileGraph
from data.graphs.node_columns import OPCODES, RANK_MAX, SHAPE_PRODUCT
from data.graphs.node_layouts import dimension_sizes, minor_to_major
from features.statistics.layout import output_bytes

PARTS = ("kernel", "output", "input")
OUTPUT_BOUNDS = slice(8, 14)
COUNTED_OPCODES = ("convolution", "dot", "reshape", "parameter")
TILE_STATISTICS = (
    *(
        f"log_{part}_bounds_{name}"
        for part in PARTS
        for name in (*map(str, range(RANK_MAX)), "sum", "product")
    ),
    "log_steps",
    "log_waste",
    "minor_bound_share",
    "log_nodes",
    "log_output_elements",
    "log_output_bytes",
    "log_parameter_bytes",
    *(f"log_output_dimension_{i}" for i in range(RANK_MAX)),
    *(f"log_count_{name}" for name in COUNTED_OPCODES),
)


def tile_statistics(graph: TileGraph) -> NDArray[np.float32]:
    """Compute the statistics of all configs of one kernel.

    steps = Π ceil(dimension / bound) over the output's dimensions; waste = steps · Π bound over
    the output's elements. A bound of 0 (there is none) counts as the whole dimension;
    minor_bound_share is the bound of the minor dimension over its size.

    Returns:
        (c, f) float32, columns as in TILE_STATISTICS.
    """
    root = output_node(graph)
    dimensions, effective, tiles = output_tiles(graph, root)
    log_steps = np.log(tiles).sum(axis=1)
    log_waste = log_steps + np.log(effective).sum(axis=1) - np.log(dimensions).sum()
    minor = max(int(minor_to_major(graph.node_feat[root : root + 1])[0, 0]), 0)
    minor_share = (effective[:, minor] / dimensions[minor]).clip(0, 1)
    constants = np.asarray(kernel_statistics(graph, root), dtype=np.float32)
    columns = [
        np.log1p(np.abs(graph.config_feat[:, :N_TILE_VALUES])),
        np.stack([log_steps, log_waste, minor_share], axis=1),
        np.tile(constants, (graph.n_configs, 1)),
    ]
    return np.concatenate(columns, axis=1).astype(np.float32)


def output_tiles(
    graph: TileGraph, root: int
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Cut the output into tiles.

    Returns:
        dimensions: (6,) of the output, 1 where it has none.
        bounds: (c, 6) of its tiles, the whole dimension where there is none.
        tiles: (c, 6) how many tiles cover each dimension.
    """
    dimensions = np.maximum(dimension_sizes(graph.node_feat[root : root + 1])[0], 1)
    given = graph.config_feat[:, OUTPUT_BOUNDS].astype(np.float64)
    bounds = np.where(given > 0, given, dimensions)
    return dimensions, bounds, np.ceil(dimensions / bounds)


def kernel_statistics(graph: TileGraph, root: int) -> list[float]:
    """Describe the kernel itself, the same for all its configs."""
    bytes_of = output_bytes(graph.node_feat)
    dimensions = np.maximum(dimension_sizes(graph.node_feat[root : root + 1])[0], 0)
    is_parameter = graph.node_opcode == OPCODES["parameter"]
    return [
        float(np.log1p(graph.n_nodes)),
        float(np.log1p(graph.node_feat[root, SHAPE_PRODUCT])),
        float(np.log1p(bytes_of[root])),
        float(np.log1p(bytes_of[is_parameter].sum())),
        *np.log1p(dimensions).tolist(),
        *(float(np.log1p((graph.node_opcode == OPCODES[n]).sum())) for n in COUNTED_OPCODES),
    ]


def output_node(graph: TileGraph) -> int:
    """Return the position of the kernel's output: its root of the largest output."""
    bytes_of = output_bytes(graph.node_feat)
    is_root = graph.node_feat[:, 0] > 0
    candidates = np.flatnonzero(is_root) if is_root.any() else np.arange(graph.n_nodes)
    return int(candidates[np.argmax(bytes_of[candidates])])
