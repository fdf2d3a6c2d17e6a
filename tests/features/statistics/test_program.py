"""Statistics of programs against definitions that a reader can follow."""

import math
from functools import cache

import numpy as np

from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph
from data.graphs.node_columns import NODE_FEATURE_NAMES, OPCODES
from data.tree import find_graphs
from features.statistics.program import COUNTED_OPCODES, PROGRAM_STATISTICS, program_statistics
from tests.features.graphs import (
    check_by_name,
    node_bytes,
    random_layout_graph,
    random_tile_graph,
    sizes_of,
)

CONVOLUTION, DOT, PARAMETER = 26, 34, 63


def feature(graph: Graph, node: int, name: str) -> float:
    return float(graph.node_feat[node, NODE_FEATURE_NAMES.index(name)])


def elements(graph: Graph, node: int) -> float:
    return feature(graph, node, "shape_dimensions_product")


def slow_levels(graph: Graph) -> list[int]:
    @cache
    def level(node: int) -> int:
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()
        return max((level(operand) + 1 for operand in operands), default=0)

    return [level(node) for node in range(graph.n_nodes)]


def slow_flops(graph: Graph, node: int) -> float:
    operands = graph.edge_index[graph.edge_index[:, 0] == node, 1].tolist()
    if not operands:
        return 0.0
    sizes = [elements(graph, operand) for operand in operands]
    if graph.node_opcode[node] == DOT:
        return 2 * math.sqrt(max(sizes) * min(sizes) * elements(graph, node))
    largest = max(zip(sizes, operands, strict=True))[1]
    dimension = int(feature(graph, node, "convolution_dim_numbers_input_feature_dim"))
    depth = dict(enumerate(sizes_of(graph, largest))).get(dimension, 1)
    window = max(feature(graph, node, "window_size_product"), 1)
    groups = max(feature(graph, node, "feature_group_count"), 1)
    return 2 * elements(graph, node) * window * max(float(depth), 1) / groups


def slow_statistics(graph: Graph) -> dict[str, float]:
    levels = slow_levels(graph)
    nodes = range(graph.n_nodes)
    depth = max(levels)
    total = sum(node_bytes(graph, node) for node in nodes)
    flops = {
        code: sum(slow_flops(graph, node) for node in nodes if graph.node_opcode[node] == code)
        for code in (CONVOLUTION, DOT)
    }
    parameters = [node for node in nodes if graph.node_opcode[node] == PARAMETER]
    found = {
        "program_log_edges": math.log1p(len(graph.edge_index)),
        "program_log_depth": math.log1p(depth),
        "program_log_width": math.log(max(levels.count(level) for level in set(levels))),
        "program_log_mean_width": math.log(graph.n_nodes / (depth + 1)),
        "program_log_bytes": math.log1p(total),
        "program_log_parameter_bytes": math.log1p(sum(node_bytes(graph, n) for n in parameters)),
        "program_log_flops_convolution": math.log1p(flops[CONVOLUTION]),
        "program_log_flops_dot": math.log1p(flops[DOT]),
        "program_log_intensity": math.log((1 + sum(flops.values())) / (1 + total)),
    }
    for name in COUNTED_OPCODES:
        count = sum(int(code) == OPCODES[name] for code in graph.node_opcode)
        found[f"program_share_{name}"] = count / graph.n_nodes
    return found


def test_random_and_sample_programs_equal_the_loop() -> None:
    random = [draw(seed) for draw in (random_layout_graph, random_tile_graph) for seed in range(15)]
    sample = [read_graph(file) for file in find_graphs(SAMPLE, splits=("valid",))[::3]]
    for graph in (*random, *sample):
        expected = slow_statistics(graph)
        assert list(expected) == list(PROGRAM_STATISTICS)
        check_by_name(expected, program_statistics(graph), expected)
    n_logs = sum("_share_" not in name for name in PROGRAM_STATISTICS)  # these come first
    logs = np.asarray([program_statistics(graph)[:n_logs] for graph in sample])
    assert (np.ptp(logs, axis=0) > 0).all()
