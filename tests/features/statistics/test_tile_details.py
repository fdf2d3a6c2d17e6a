"""Further tile statistics against a loop over configs and dimensions that a reader can follow."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from common.settings import SAMPLE
from data.graphs.graph import TileGraph
from data.graphs.node_columns import ELEMENT_BYTES
from data.graphs.node_layouts import tensor_ranks
from data.read import read_tile
from data.tree import collection_named, find_graphs
from features.statistics.tile_details import TILE_DETAILS, tile_details
from tests.features.graphs import random_tile_graph
from tests.features.statistics.test_program import slow_flops
from tests.features.statistics.test_tile import node_bytes, slow_output
from tests.real_data import real_tile_graphs, requires_real_data


def slow_details(graph: TileGraph, config: NDArray[np.float32]) -> dict[str, float]:
    root = slow_output(graph)
    output = graph.node_feat[root]
    rank = int(tensor_ranks(output[None])[0])
    sizes = [max(float(output[21 + i]), 1) if i < rank else 1.0 for i in range(6)]
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
    flops = 1 + sum(slow_flops(graph, n) for n in range(graph.n_nodes) if is_heavy(graph, n))
    found["log_moved_bytes"] = math.log(moved)
    found["log_operand_reuse"] = math.log((1 + read) / (1 + parameter_bytes))
    found["log_flops_per_byte"] = math.log(flops / moved)
    found["log_flops_per_step"] = math.log(flops / steps)
    return found


def is_heavy(graph: TileGraph, node: int) -> bool:
    return int(graph.node_opcode[node]) in (26, 34)


def check(graph: TileGraph) -> NDArray[np.float32]:
    found = tile_details(graph)
    assert found.shape == (graph.n_configs, len(TILE_DETAILS))
    for row, config in zip(found, graph.config_feat, strict=True):
        want = slow_details(graph, config)
        assert list(want) == list(TILE_DETAILS)
        for name, value in zip(TILE_DETAILS, row.tolist(), strict=True):
            assert value == pytest.approx(want[name], rel=2e-5, abs=2e-5), name
    return found


def test_random_kernels_equal_the_loop() -> None:
    together = np.concatenate([check(random_tile_graph(seed)) for seed in range(80)])
    for column, name in enumerate(TILE_DETAILS):
        assert len(np.unique(together[:, column])) > 1, name


def test_sample_kernels_equal_the_loop() -> None:
    for file in find_graphs(SAMPLE, collections=(collection_named("tile:xla"),), splits=("valid",)):
        check(read_tile(file))


@requires_real_data
def test_real_kernels_equal_the_loop() -> None:
    for graph in real_tile_graphs():
        check(graph)
