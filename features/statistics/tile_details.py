"""Further statistics of tile configs, for trees and linear rankers: work against bytes moved.

A config gives bounds to the kernel (a convolution's window), the output and the inputs. How the
compiler reads the inputs' bounds differs between kernels; the volumes here are products of the
bounds that are given, which is what orders the configs of one kernel.
"""

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import TileGraph
from data.graphs.node_columns import ELEMENT_BYTES, ELEMENT_TYPE, OPCODES, RANK_MAX, SHAPE_PRODUCT
from data.graphs.node_layouts import minor_to_major
from features.statistics.layout import TILE_MINOR, TILE_SECOND, output_bytes
from features.statistics.program import node_flops
from features.statistics.tile import output_node, output_tiles

KERNEL_BOUNDS, INPUT_BOUNDS = slice(0, 6), slice(16, 22)
# d dimension, b bound (the whole dimension where there is none), t = ceil(d / b) tiles of it
TILE_DETAILS = {
    "log_tile_volume": "log Π b over the output's dimensions: elements of an output tile",
    "log_tile_bytes": "log(1 + Π b · bytes of an output element)",
    "log_tile_register_waste": "log of the output tile's growth by padding its minor dimension to "
    "128 and its second to 8",
    "minor_bound_is_whole": "1 if the minor bound is a multiple of 128, else 0",
    "second_bound_is_whole": "1 if the second minor bound is a multiple of 8, else 0",
    **{f"log_tiles_{i}": f"log t of the output's dimension {i}" for i in range(RANK_MAX)},
    "log_input_volume": "log Π of the inputs' bounds above 0",
    "log_kernel_volume": "log Π of the kernel's bounds above 0",
    "log_moved_bytes": "log(1 + steps · (output tile's bytes + (input volume + kernel volume) · "
    "mean bytes of a parameter's element))",
    "log_operand_reuse": "log of (1 + steps · (input volume + kernel volume) · those bytes) / (1 + "
    "parameters' bytes): how often an operand is read",
    "log_flops_per_byte": "log(1 + flops) − log_moved_bytes",
    "log_flops_per_step": "log(1 + flops) − log steps",
}


def tile_details(graph: TileGraph) -> NDArray[np.float32]:
    """Compute the statistics of all configs of a kernel; (c, f) float32, as in TILE_DETAILS."""
    root = output_node(graph)
    _, effective, tiles = output_tiles(graph, root)
    bounds = graph.config_feat.astype(np.float64)
    log_steps = np.log(tiles).sum(axis=1)
    volume = effective.prod(axis=1)
    element_bytes = float(graph.node_feat[root, ELEMENT_TYPE] @ np.asarray(ELEMENT_BYTES))
    sizes = [
        np.where(bounds[:, part] > 0, bounds[:, part], 1).prod(axis=1)
        for part in (INPUT_BOUNDS, KERNEL_BOUNDS)
    ]
    is_parameter = graph.node_opcode == OPCODES["parameter"]
    parameter_bytes = output_bytes(graph.node_feat)[is_parameter].sum()
    elements = graph.node_feat[is_parameter, SHAPE_PRODUCT].astype(np.float64).sum()
    read = np.exp(log_steps) * (sizes[0] + sizes[1]) * parameter_bytes / max(elements, 1.0)
    moved = np.log1p(np.exp(log_steps) * volume * element_bytes + read)
    log_flops = np.log1p(node_flops(graph).sum())
    waste, minor_whole, second_whole = _register_fit(graph.node_feat[root], effective)
    columns = [
        np.log(volume),
        np.log1p(volume * element_bytes),
        waste,
        minor_whole,
        second_whole,
        *np.log(tiles).T,
        *np.log(sizes),
        moved,
        np.log1p(read) - np.log1p(parameter_bytes),
        log_flops - moved,
        log_flops - log_steps,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _register_fit(
    output: NDArray[np.float32], effective: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell how output tiles (c, 6) fit the 8 x 128 registers: log growth, which bounds are whole.

    A dimension that the output lacks fits.
    """
    growth = np.zeros(len(effective))
    is_whole = []
    order = minor_to_major(output[None])[0]
    for dimension, tile in zip(order[:2], (TILE_MINOR, TILE_SECOND), strict=True):
        bound = effective[:, dimension] if dimension >= 0 else np.full(len(effective), float(tile))
        growth += np.log(np.ceil(bound / tile) * tile / bound)
        is_whole.append(bound % tile == 0)
    return growth, is_whole[0], is_whole[1]
