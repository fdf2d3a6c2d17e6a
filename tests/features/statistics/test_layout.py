"""Layout statistics against a loop over configs and nodes; dimensions of known and of real dots."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from common.settings import SAMPLE
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph
from data.graphs.node_columns import NODE_FEATURE_NAMES, SHAPE_PRODUCT
from data.tree import COLLECTIONS, find_graphs
from features.statistics.configs import ALL_STATISTICS, statistics_of
from features.statistics.layout import (
    BATCH,
    COLUMNS,
    CONTRACTED,
    MAX_VISITED,
    OTHER,
    ROLES,
    ROWS,
    SPATIAL,
    dot_roles,
    layout_sources,
    output_bytes,
    tensor_roles,
)
from features.statistics.layout_tables import LAYOUT_DETAILS, LAYOUT_STATISTICS
from tests.features.graphs import (
    check_by_name,
    node_bytes,
    random_layout_graph,
    sizes_of,
    tied_layout_graph,
)

OPCODES = {"convolution": 26, "dot": 34, "reshape": 75}
TENSORS = ("output", "input", "kernel")
OPEN = [-1, -1]
NAMES = (*LAYOUT_STATISTICS, *LAYOUT_DETAILS)

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
Pair = tuple[int, int]


def shape_of(graph: LayoutGraph, node: int) -> tuple[float, ...]:
    """Return the stored sizes and a value of the layout that depends on the rank."""
    return (*graph.node_feat[node, 21:27].tolist(), graph.node_feat[node, 134:140].max())


def operands_of(graph: LayoutGraph) -> dict[int, list[int]]:
    operands: dict[int, list[int]] = {node: [] for node in range(graph.n_nodes)}
    for consumer, producer in graph.edge_index.tolist():
        operands[consumer].append(producer)
    return operands


def slow_pairs(graph: LayoutGraph, at_most: int) -> list[Pair]:
    """Return node pairs (consumer, producer).

    From each operand the search goes back while the shape stays. It stops at configurable nodes,
    and after `at_most` nodes.
    """
    operands = operands_of(graph)
    configurable = set(graph.node_config_ids.tolist())
    shape = [shape_of(graph, node) for node in range(graph.n_nodes)]
    pairs = []
    for consumer in configurable:
        for operand in operands[consumer]:
            distance = {operand: 0}
            step = 0
            while step in distance.values():
                here = [node for node, far in distance.items() if far == step]
                pairs += [(consumer, node) for node in here if node in configurable]
                step += 1
                if len(distance) > at_most:
                    break
                for node in here:
                    if node in configurable:
                        continue
                    for other in operands[node]:
                        if shape[other] == shape[node]:
                            distance.setdefault(other, step)
    return sorted(pairs)


def padding_factor(graph: LayoutGraph, node: int, minor: int, second: int) -> float:
    """How the 8 x 128 tile grows a tensor whose two minor dimensions these are."""
    sizes = sizes_of(graph, node)
    factor = 1.0
    for dimension, tile in ((minor, 128), (second, 8)):
        if 0 <= dimension < len(sizes) and sizes[dimension] > 0:
            factor *= math.ceil(sizes[dimension] / tile) * tile / sizes[dimension]
    return factor


def default_layout(graph: LayoutGraph, node: int) -> list[int]:
    """The two minor dimensions of a node's output as the compiler had it, -1 for none."""
    rank = len(sizes_of(graph, node))
    return [*graph.node_feat[node, 134 : 134 + rank].astype(int).tolist(), -1, -1][:2]


def size_class(size: int, tile: int) -> str:
    if size < 8:
        return "below_8"
    if size < tile:
        return "below_128"
    return "ragged" if size % tile else "whole_tiles"


class SlowStatistics:
    """The statistics of one config at a time, straight from their definitions."""

    def __init__(self, graph: LayoutGraph) -> None:
        self.graph = graph
        self.nodes = graph.node_config_ids.tolist()
        self.bytes = [node_bytes(graph, node) for node in range(graph.n_nodes)]
        self.defaults = [default_layout(graph, node) for node in range(graph.n_nodes)]
        self.role, self.bytes_share = tensor_roles(graph, np.array(self.bytes))
        self.pairs = slow_pairs(graph, MAX_VISITED)
        edges = graph.edge_index.tolist()
        self.operands = [(u, v) for u, v in edges if u in self.nodes]
        self.fixed_operands = [
            (u, v) for u, v in self.operands if v not in self.nodes and self.defaults[v] != OPEN
        ]
        self.fixed_readers = [
            (u, v)
            for u, v in edges
            if v in self.nodes and u not in self.nodes and sizes_of(graph, u) == sizes_of(graph, v)
        ]

    def __call__(self, values: NDArray[np.int8]) -> dict[str, float]:
        """Return the statistics of one config (k, 18) by name."""
        result = dict.fromkeys(NAMES, 0.0)
        minor = values.reshape(-1, 3, 6)[:, :, :2].tolist()
        self.layouts = dict(zip(self.nodes, minor, strict=True))
        self.outputs = {
            node: self.defaults[node] if layouts[0] == OPEN else layouts[0]
            for node, layouts in self.layouts.items()
        }
        result["all_open"] = float((values == -1).all())
        result["open_nodes"] = np.mean((values == -1).all(axis=1))
        result["log_nodes"] = math.log1p(self.graph.n_nodes)
        result["log_configurable"] = math.log1p(len(self.nodes))
        result["log_bytes"] = math.log1p(sum(self.bytes))
        self.add_nodes(result)
        self.add_pairs(result)
        self.add_fixed(result)
        self.add_operand_padding(result)
        return result

    def group(self, node: int) -> str:
        names = {number: name for name, number in OPCODES.items()}
        return names.get(int(self.graph.node_opcode[node]), "")

    def total(self, nodes: list[int]) -> float:
        return max(sum(self.bytes[node] for node in nodes), 1.0)

    def operand_layouts(self, consumer: int) -> list[list[int]]:
        return [layout for layout in self.layouts[consumer][1:] if layout != OPEN]

    def add_nodes(self, result: dict[str, float]) -> None:
        padded = 0.0
        for place, node in enumerate(self.nodes):
            share, group = self.bytes[node] / self.total(self.nodes), self.group(node)
            padded += share * padding_factor(self.graph, node, *self.outputs[node])
            if group:
                result[f"share_{group}"] += 1 / len(self.nodes)
                is_default = self.outputs[node] == self.defaults[node]
                result[f"output_as_default_{group}"] += share * is_default
            for number, tensor in enumerate(TENSORS):
                role = ROLES[self.role[place, number, self.layouts[node][number][0] + 1]]
                if f"{tensor}_{role}_{group}" in result:
                    result[f"{tensor}_{role}_{group}"] += self.bytes_share[place, number]
            sizes = dict(enumerate(sizes_of(self.graph, node)))
            minor, second = self.outputs[node]
            for part, dimension, tile in (("minor", minor, 128), ("second", second, 8)):
                if dimension in sizes:
                    result[f"{part}_size_{size_class(sizes[dimension], tile)}"] += share
        result["log_padding"] = math.log(max(padded, 1e-6))

    def add_pairs(self, result: dict[str, float]) -> None:
        moved = self.total([producer for _, producer in self.pairs])
        for consumer, producer in self.pairs:
            layouts = self.operand_layouts(consumer)
            if not layouts:
                result["open_edges_share"] += 1 / len(self.pairs)
            elif self.outputs[producer] not in layouts:
                result["copied_edges_share"] += 1 / len(self.pairs)
                result["copied_bytes_share"] += self.bytes[producer] / moved
                if group := self.group(consumer):
                    result[f"copied_bytes_to_{group}"] += self.bytes[producer] / moved

    def add_fixed(self, result: dict[str, float]) -> None:
        moved = self.total([operand for _, operand in self.fixed_operands])
        for consumer, operand in self.fixed_operands:
            layouts = self.operand_layouts(consumer)
            if layouts and self.defaults[operand] not in layouts:
                result["fixed_operand_copied_bytes"] += self.bytes[operand] / moved
                result["fixed_operand_copied_edges"] += 1 / len(self.fixed_operands)
        moved = self.total([producer for _, producer in self.fixed_readers])
        for reader, producer in self.fixed_readers:
            if self.defaults[reader] != self.outputs[producer]:
                result["fixed_reader_copied_bytes"] += self.bytes[producer] / moved
                result["fixed_reader_copied_edges"] += 1 / len(self.fixed_readers)

    def add_operand_padding(self, result: dict[str, float]) -> None:
        total = self.total([operand for _, operand in self.operands])
        for place, tensor in ((1, "input"), (2, "kernel")):
            padded = 0.0
            for consumer, operand in self.operands:
                layout = self.layouts[consumer][place]
                layout = self.defaults[operand] if layout == OPEN else layout
                growth = padding_factor(self.graph, operand, *layout)
                padded += self.bytes[operand] / total * growth
            result[f"log_{tensor}_padding"] = math.log(max(padded, 1e-6))


def check(graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Compare the statistics of some configs, in the order of NAMES, with the slow ones."""
    plain, every = (statistics_of(graph, which)(rows) for which in ("plain", "all"))
    assert plain.dtype == every.dtype == np.float32
    np.testing.assert_array_equal(plain, every[:, : len(LAYOUT_STATISTICS)])
    assert every.shape == (len(rows), len(ALL_STATISTICS["layout"]))
    slow = SlowStatistics(graph)
    for row, config in zip(every[:, : len(NAMES)], graph.configs.rows(rows), strict=True):
        check_by_name(NAMES, row, slow(config))
    return every[:, : len(NAMES)]


def test_random_and_measured_graphs_equal_the_loop() -> None:
    """And none of the statistics is idle: over the graphs, each takes several values."""
    random = [draw(seed) for draw in (random_layout_graph, tied_layout_graph) for seed in range(20)]
    collections = [c for c in COLLECTIONS if c.kind == "layout"]
    files = find_graphs(SAMPLE, collections=collections, splits=["valid"])
    measured = [read_layout(file) for file in files[::2]]
    tables = [check(graph, np.arange(graph.n_configs)[:12]) for graph in (*random, *measured)]
    together = np.concatenate(tables)
    for column, name in enumerate(NAMES):
        assert len(np.unique(together[:, column])) > 1, name


def check_pairs(graph: LayoutGraph) -> None:
    consumers, producers = graph.node_config_ids[np.array(layout_sources(graph))]
    pairs = zip(consumers.tolist(), producers.tolist(), strict=True)
    assert sorted(pairs) == slow_pairs(graph, MAX_VISITED)


@pytest.mark.parametrize("seed", range(4))
def test_pairs_equal_the_slow_search(seed: int) -> None:
    """Small, and large enough for the walk to be cut short."""
    graph = random_layout_graph(seed, n_nodes=400)
    few = replace(graph, node_config_ids=graph.node_config_ids[:5])
    one_shape = replace(few, node_feat=np.repeat(graph.node_feat[:1], 400, axis=0))
    for each in (random_layout_graph(seed), few, one_shape):
        check_pairs(each)


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_a_dot_of_known_dimensions_is_read_off_its_sizes(data: st.DataObject) -> None:
    # The numbers of batch, row and column dimensions.
    counts = [data.draw(st.integers(0, 2)) for _ in range(3)]
    n_contracted = data.draw(st.integers(1, 2))
    sizes = iter(data.draw(st.permutations(PRIMES)))
    batch, rows, columns = ([next(sizes) for _ in range(count)] for count in counts)
    contracted = [next(sizes) for _ in range(n_contracted)]
    known = dict.fromkeys(batch, BATCH) | dict.fromkeys(rows, ROWS)
    known |= dict.fromkeys(columns, COLUMNS) | dict.fromkeys(contracted, CONTRACTED)
    # Batch dimensions keep their order, and so do rows and columns. Contracted dimensions may be at
    # any place.
    operands = [
        next(
            order
            for order in data.draw(st.permutations(list(permutations([*batch, *own, *contracted]))))
            if [s for s in order if s in batch] == batch and [s for s in order if s in own] == own
        )
        for own in (rows, columns)
    ]
    output = (*batch, *rows, *columns)
    swapped = data.draw(st.booleans())
    roles, is_swapped = dot_roles(output, *(operands[::-1] if swapped else operands))
    if rows and columns:  # else either operand may be the input
        assert is_swapped == swapped
        want = tuple(tuple(known[size] for size in own) for own in (output, *operands))
        assert roles == want


def test_of_several_readings_the_usual_one_is_taken() -> None:
    square = (8, 8)
    want = ((ROWS, COLUMNS), (ROWS, CONTRACTED), (CONTRACTED, COLUMNS))
    assert dot_roles(square, square, square) == (want, False)
    assert dot_roles((3, 5), (3, 7), (11, 5)) == ((), False)  # no dot has such sizes


def test_a_convolution_says_what_its_dimensions_do() -> None:
    graph = random_layout_graph(5)
    node = graph.node_config_ids[0]
    graph.node_opcode[node] = OPCODES["convolution"]
    for name, dim in {"output_batch": 2, "output_feature": 0, "kernel_input_feature": 3}.items():
        column = NODE_FEATURE_NAMES.index(f"convolution_dim_numbers_{name}_dim")
        graph.node_feat[node, column] = dim
    role = tensor_roles(graph, output_bytes(graph.node_feat))[0][0]
    assert role[0, 1:4].tolist() == [COLUMNS, SPATIAL, ROWS]
    assert role[2, 4] == CONTRACTED


def test_types_newer_than_the_dataset_have_bytes() -> None:
    node_feat = np.zeros((4, 140), np.float32)
    node_feat[:, SHAPE_PRODUCT] = 10
    node_feat[0, NODE_FEATURE_NAMES.index("shape_element_type_is_f32")] = 1
    node_feat[1, NODE_FEATURE_NAMES.index("shape_element_type_is_tuple")] = 1
    # The third has a new type, for example f8e5m2; the layout of the fourth packs two s4.
    node_feat[3, NODE_FEATURE_NAMES.index("element_size_in_bits")] = 4
    assert output_bytes(node_feat).tolist() == [40, 0, 10, 5]


def test_all_dots_of_measured_programs_are_understood() -> None:
    n_dots = 0
    for file in find_graphs(SAMPLE, collections=COLLECTIONS[1:], splits=["valid"]):
        graph = read_layout(file)
        role, bytes_share = tensor_roles(graph, output_bytes(graph.node_feat))
        dots = graph.node_opcode[graph.node_config_ids] == OPCODES["dot"]
        n_dots += int(dots.sum())
        assert (role[dots][:, 0, 1] != OTHER).all(), file.submission_id
        assert bytes_share.sum() == pytest.approx(1, abs=1e-4)
        assert (bytes_share[dots] > 0).all()
    assert n_dots > 50
