"""What a dimension does: dots of known roles are read off their sizes, and real programs are."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.settings import SAMPLE
from data.graphs.node_columns import NODE_FEATURE_NAMES, OPCODES, dimension_sizes
from data.read import read_layout
from data.tree import find_graphs
from features.statistics.layout import (
    BATCH,
    COLUMNS,
    CONTRACTED,
    OTHER,
    ROWS,
    SPATIAL,
    dot_roles,
    output_bytes,
    tensor_roles,
)
from tests.features.graphs import random_layout_graph

LINEAR_ATTENTION = "layout:nlp:random:linear_attention_d2_b2"
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_a_dot_of_known_dimensions_is_read_off_its_sizes(data: st.DataObject) -> None:
    counts = [data.draw(st.integers(0, 2)) for _ in range(3)]  # of batch, rows and columns
    n_contracted = data.draw(st.integers(1, 2))
    sizes = iter(data.draw(st.permutations(PRIMES)))
    batch, rows, columns = ([next(sizes) for _ in range(count)] for count in counts)
    contracted = [next(sizes) for _ in range(n_contracted)]
    known = dict.fromkeys(batch, BATCH) | dict.fromkeys(rows, ROWS)
    known |= dict.fromkeys(columns, COLUMNS) | dict.fromkeys(contracted, CONTRACTED)
    # An operand's batch and own dimensions keep their order; the contracted lie anywhere.
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


@pytest.mark.parametrize("split", ["train", "valid"])
def test_all_dots_of_measured_programs_are_understood(split: str) -> None:
    n_dots = 0
    for file in find_graphs(SAMPLE, splits=[split]):
        if file.collection.kind == "layout":
            graph = read_layout(file)
            role, bytes_share = tensor_roles(graph, output_bytes(graph.node_feat))
            dots = graph.node_opcode[graph.node_config_ids] == OPCODES["dot"]
            n_dots += int(dots.sum())
            assert (role[dots][:, 0, 1] != OTHER).all(), file.submission_id
            assert bytes_share.sum() == pytest.approx(1, abs=1e-4)
            assert (bytes_share[dots] > 0).all()
    assert n_dots > 50


def test_a_kernel_that_is_listed_first_is_weighed_as_the_kernel() -> None:
    """Edges come sorted by number, not in the order of operands."""
    (file,) = [f for f in find_graphs(SAMPLE) if f.submission_id == LINEAR_ATTENTION]
    graph = read_layout(file)
    sizes = dimension_sizes(graph.node_feat)
    bytes_of = output_bytes(graph.node_feat)
    _, shares = tensor_roles(graph, bytes_of)
    seen = 0
    for place, node in enumerate(graph.node_config_ids.tolist()):
        operands = graph.edge_index[graph.edge_index[:, 0] == node, 1]
        if graph.node_opcode[node] == OPCODES["dot"] and len(operands) == 2:
            # The output's last dimension is the kernel's own, where but one operand has it.
            last = [size for size in sizes[node] if size >= 0][-1]
            has = [last in sizes[operand] for operand in operands]
            if sum(has) == 1 and has[0]:
                seen += 1
                kernel, given = bytes_of[operands]
                assert shares[place, 2] / shares[place, 1] == pytest.approx(kernel / given)
    assert seen
