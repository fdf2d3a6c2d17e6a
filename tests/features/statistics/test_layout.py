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
from features.statistics.configs import statistics_of
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
from features.statistics.layout_tables import LAYOUT_STATISTICS
from tests.features.graphs import (
    check_by_name,
    node_bytes,
    random_layout_graph,
    sizes_of,
    tied_layout_graph,
)

OPCODES = {"convolution": 26, "dot": 34, "reshape": 75}
TENSORS = ("output", "input", "kernel")

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


def own_layout(graph: LayoutGraph, node: int) -> list[int]:
    """The two minor dimensions of a node's output as the compiler had it, -1 for none."""
    rank = len(sizes_of(graph, node))
    return [*graph.node_feat[node, 134 : 134 + rank].astype(int).tolist(), -1, -1][:2]


def slow_statistics(graph: LayoutGraph, values: NDArray[np.int8]) -> dict[str, float]:
    """Compute the statistics of one config (k, 18), by name."""
    nodes = graph.node_config_ids.tolist()
    bytes_of = {node: node_bytes(graph, node) for node in range(graph.n_nodes)}
    total = max(sum(bytes_of[node] for node in nodes), 1.0)
    layouts = {node: values[place].reshape(3, 6).tolist() for place, node in enumerate(nodes)}
    found = dict.fromkeys(LAYOUT_STATISTICS, 0.0)
    role, bytes_share = tensor_roles(graph, np.array(list(bytes_of.values())))
    found["all_open"] = float((values == -1).all())
    padded = 0.0
    chosen = {}
    for node in nodes:
        share = bytes_of[node] / total
        group = [name for name, number in OPCODES.items() if graph.node_opcode[node] == number]
        place = nodes.index(node)
        found["open_nodes"] += (values[place] == -1).all() / len(nodes)
        for number, (tensor, layout) in enumerate(zip(TENSORS, layouts[node], strict=True)):
            what = ROLES[role[place, number, layout[0] + 1]]
            for name in group:
                if f"{tensor}_{what}_{name}" in found:
                    found[f"{tensor}_{what}_{name}"] += bytes_share[place, number]
        own = own_layout(graph, node)
        output = layouts[node][0][:2]
        chosen[node] = own if output == [-1, -1] else output
        for name in group:
            found[f"output_as_default_{name}"] += share * (chosen[node] == own)
        padded += share * padding_factor(graph, node, *chosen[node])
    found["log_padding"] = math.log(max(padded, 1e-6))
    add_copies(found, graph, layouts, chosen, bytes_of)
    found["log_nodes"] = math.log1p(graph.n_nodes)
    found["log_configurable"] = math.log1p(len(nodes))
    found["log_bytes"] = math.log1p(sum(bytes_of.values()))
    for name, number in OPCODES.items():
        found[f"share_{name}"] = sum(graph.node_opcode[n] == number for n in nodes) / len(nodes)
    return found


def add_copies(
    found: dict[str, float],
    graph: LayoutGraph,
    layouts: dict[int, list[list[int]]],
    chosen: dict[int, list[int]],
    bytes_of: dict[int, float],
) -> None:
    pairs = slow_pairs(graph, 64)
    moved = max(sum(bytes_of[producer] for _, producer in pairs), 1.0)
    for consumer, producer in pairs:
        wanted = [layout[:2] for layout in layouts[consumer][1:]]
        named = [layout for layout in wanted if layout != [-1, -1]]
        if not named:
            found["open_edges_share"] += 1 / len(pairs)
        elif chosen[producer] not in named:
            found["copied_edges_share"] += 1 / len(pairs)
            found["copied_bytes_share"] += bytes_of[producer] / moved


def check(graph: LayoutGraph, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    values = graph.configs.rows(rows)
    statistics = statistics_of(graph, "plain")(rows)
    assert statistics.dtype == np.float32
    assert statistics.shape == (len(rows), len(LAYOUT_STATISTICS))
    for row, config in zip(statistics, values, strict=True):
        check_by_name(LAYOUT_STATISTICS, row, slow_statistics(graph, config))
    return statistics


def test_random_and_measured_graphs_equal_the_loop() -> None:
    """And none of the statistics is idle: over the graphs, each takes several values."""
    random = [draw(seed) for draw in (random_layout_graph, tied_layout_graph) for seed in range(20)]
    collections = [c for c in COLLECTIONS if c.kind == "layout"]
    files = find_graphs(SAMPLE, collections=collections, splits=["valid"])
    measured = [read_layout(file) for file in files[::2]]
    tables = [check(graph, np.arange(graph.n_configs)[:12]) for graph in (*random, *measured)]
    together = np.concatenate(tables)
    for column, name in enumerate(LAYOUT_STATISTICS):
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
