"""Further layout statistics against a loop over configs and nodes that a reader can follow."""

import math

import numpy as np
from numpy.typing import NDArray

from common.settings import SAMPLE
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph
from data.tree import collection_named, find_graphs
from features.statistics.configs import ALL_STATISTICS, statistics_of
from features.statistics.layout_tables import LAYOUT_DETAILS
from tests.features.graphs import (
    check_by_name,
    node_bytes,
    random_layout_graph,
    sizes_of,
    tied_layout_graph,
)
from tests.features.statistics.test_layout import (
    OPCODES,
    own_layout,
    padding_factor,
    slow_pairs,
)

START = len(ALL_STATISTICS["layout"]) - len(
    [name for name in ALL_STATISTICS["layout"] if name.startswith("program_")]
)


class SlowDetails:
    """Statistics of one config at a time, straight from their definitions."""

    def __init__(self, graph: LayoutGraph) -> None:
        self.graph = graph
        self.nodes = graph.node_config_ids.tolist()
        self.configs = [row.tobytes() for row in graph.configs.rows(np.arange(graph.n_configs))]
        self.bytes = [node_bytes(graph, node) for node in range(graph.n_nodes)]
        self.own = [own_layout(graph, node) for node in range(graph.n_nodes)]
        self.pairs = slow_pairs(graph, 64)
        consumed = [edge for edge in graph.edge_index.tolist() if edge[0] in self.nodes]
        self.operands = consumed
        self.fixed_operands = [
            (u, v) for u, v in consumed if v not in self.nodes and self.own[v] != [-1, -1]
        ]
        self.fixed_readers = [
            (u, v)
            for u, v in graph.edge_index.tolist()
            if v in self.nodes and u not in self.nodes and sizes_of(graph, u) == sizes_of(graph, v)
        ]

    def group(self, node: int) -> str:
        names = {number: name for name, number in OPCODES.items()}
        return names.get(int(self.graph.node_opcode[node]), "")

    def __call__(self, row: int) -> dict[str, float]:
        values = np.frombuffer(self.configs[row], np.int8).reshape(len(self.nodes), 3, 6)
        layouts = {node: values[i].tolist() for i, node in enumerate(self.nodes)}
        chosen = {}
        for node in self.nodes:
            output = layouts[node][0][:2]
            chosen[node] = self.own[node] if output == [-1, -1] else output
        found = dict.fromkeys(LAYOUT_DETAILS, 0.0)
        self.add_nodes(found, layouts, chosen)
        self.add_fixed(found, layouts, chosen)
        moved = max(sum(self.bytes[producer] for _, producer in self.pairs), 1.0)
        for consumer, producer in self.pairs:
            named = [x[:2] for x in layouts[consumer][1:] if x[:2] != [-1, -1]]
            if named and chosen[producer] not in named and self.group(consumer):
                key = f"copied_bytes_to_{self.group(consumer)}"
                found[key] += self.bytes[producer] / moved
        return found

    def share(self, node: int) -> float:
        return self.bytes[node] / max(sum(self.bytes[n] for n in self.nodes), 1.0)

    def add_nodes(self, found, layouts, chosen) -> None:
        for node in self.nodes:
            dims = sizes_of(self.graph, node)
            minor, second = (dims[d] if 0 <= d < len(dims) else None for d in chosen[node])
            for part, size, tile in (("minor", minor, 128), ("second", second, 8)):
                if size is None:
                    continue
                if size < 8:
                    name = "below_8"
                elif size < tile:
                    name = "below_128"
                else:
                    name = "ragged" if size % tile else "whole_tiles"
                found[f"{part}_size_{name}"] += self.share(node)

    def add_fixed(self, found, layouts, chosen) -> None:
        total = max(sum(self.bytes[v] for _, v in self.fixed_operands), 1.0)
        for consumer, operand in self.fixed_operands:
            named = [x[:2] for x in layouts[consumer][1:] if x[:2] != [-1, -1]]
            if named and self.own[operand] not in named:
                found["fixed_operand_copied_bytes"] += self.bytes[operand] / total
                found["fixed_operand_copied_edges"] += 1 / len(self.fixed_operands)
        total = max(sum(self.bytes[v] for _, v in self.fixed_readers), 1.0)
        for reader, producer in self.fixed_readers:
            if self.own[reader] != chosen[producer]:
                found["fixed_reader_copied_bytes"] += self.bytes[producer] / total
                found["fixed_reader_copied_edges"] += 1 / len(self.fixed_readers)
        total = max(sum(self.bytes[v] for _, v in self.operands), 1.0)
        for place, tensor in ((1, "input"), (2, "kernel")):
            padded = 0.0
            for consumer, operand in self.operands:
                layout = layouts[consumer][place][:2]
                layout = self.own[operand] if layout == [-1, -1] else layout
                growth = padding_factor(self.graph, operand, *layout)
                padded += self.bytes[operand] / total * growth
            found[f"log_{tensor}_padding"] = math.log(max(padded, 1e-6))


def details(graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    table = statistics_of(graph, "all")(rows)
    return table[:, START - len(LAYOUT_DETAILS) : START]


def check(graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    found, slow = details(graph, rows), SlowDetails(graph)
    for row, values in zip(rows.tolist(), found, strict=True):
        check_by_name(LAYOUT_DETAILS, values, slow(row))
    return found


def test_random_graphs_equal_the_loop() -> None:
    """And none of the statistics is idle: over the graphs, each takes several values."""
    graphs = [draw(seed) for draw in (random_layout_graph, tied_layout_graph) for seed in range(20)]
    layouts = [collection_named("layout:xla:random"), collection_named("layout:nlp:default")]
    for file in find_graphs(SAMPLE, collections=layouts, splits=("valid", "test")):
        check(read_layout(file), np.arange(3))
    together = np.concatenate([check(graph, np.arange(graph.n_configs)) for graph in graphs])
    for column, name in enumerate(LAYOUT_DETAILS):
        assert len(np.unique(together[:, column])) > 1, name
