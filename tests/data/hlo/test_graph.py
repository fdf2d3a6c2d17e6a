"""Modules turned into graphs, against a slow reading of the features' names."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from common.errors import PipelineError
from data.graphs.node_columns import (
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    NODE_FEATURE_NAMES,
    OPCODE_NAMES,
    OPCODES,
)
from data.hlo.graph import featurize_module, sequence_features
from tests.features.hlo_modules import ModuleBuilder, small_module

XLA_TYPE_NUMBERS = dict(zip(ELEMENT_TYPES[:13], range(13), strict=True)) | {
    "bf16": 16,
    "c64": 15,
    "c128": 18,
    "tuple": 13,
    "opaque": 14,
    "token": 17,
}


def named_list(instruction: Any, prefix: str) -> list[int]:
    numbers = instruction.convolution_dimension_numbers
    if prefix == "shape_dimensions":
        return list(instruction.shape.dimensions)
    if prefix == "layout_minor_to_major":
        return list(instruction.shape.layout.minor_to_major)
    if prefix in ("dimensions", "dynamic_slice_sizes"):
        return list(getattr(instruction, prefix))
    if prefix.startswith("convolution_dim_numbers_"):
        field = prefix.removeprefix("convolution_dim_numbers_").replace("dims", "dimensions")
        return list(getattr(numbers, field))
    for start, parts in (
        ("window_", instruction.window.dimensions),
        ("slice_dims_", instruction.slice_dimensions),
        ("padding_config_", instruction.padding_config.dimensions),
    ):
        if prefix.startswith(start):
            return [int(getattr(part, prefix.removeprefix(start))) for part in parts]
    raise AssertionError(prefix)


def feature_by_name(instruction: Any, name: str, *, is_root: bool) -> float:
    value: Any
    if name == "is_root":
        value = is_root
    elif name == "element_size_in_bits":
        value = instruction.shape.layout.element_size_in_bits
    elif name == "shape_tuple_shapes_size":
        value = len(instruction.shape.tuple_shapes)
    elif match := re.fullmatch(r"shape_element_type_is_(\w+)", name):
        value = XLA_TYPE_NUMBERS[match[1]] == instruction.shape.element_type
    elif match := re.fullmatch(r"convolution_dim_numbers_(\w+_dim)", name):
        value = getattr(instruction.convolution_dimension_numbers, f"{match[1]}ension")
    elif match := re.fullmatch(r"(\w+)_(\d|sum|product|true_count|false_count)", name):
        value = of_list(named_list(instruction, match[1]), match[2])
    else:
        value = getattr(instruction, name)
    return float(value)


def of_list(values: list[int], what: str) -> int:
    """Return the value at a place, 0 where there is none, or a total of all."""
    totals = {
        "sum": sum(values),
        "product": math.prod(values),
        "true_count": sum(values),
        "false_count": len(values) - sum(values),
    }
    return totals[what] if what in totals else dict(enumerate(values)).get(int(what), 0)


def all_instructions(module: Any) -> list[Any]:
    return [i for computation in module.computations for i in computation.instructions]


def test_node_features_and_edges_have_the_documented_values() -> None:
    module = small_module()
    graph = featurize_module(module)
    instructions = all_instructions(module)
    root_ids = {computation.root_id for computation in module.computations}
    expected = [
        [feature_by_name(i, name, is_root=i.id in root_ids) for name in NODE_FEATURE_NAMES]
        for i in instructions
    ]
    np.testing.assert_array_equal(graph.node_feat, np.array(expected, dtype=np.float32))
    n_varied = sum(len(set(column)) > 1 for column in graph.node_feat.T)
    assert n_varied >= 80, "the module exercises too few columns to tell them apart"
    positions = {i.id: node for node, i in enumerate(instructions)}
    roots = {computation.id: positions[computation.root_id] for computation in module.computations}
    edges = [(positions[i.id], positions[key]) for i in instructions for key in i.operand_ids]
    edges += [
        (positions[i.id], roots[key]) for i in instructions for key in i.called_computation_ids
    ]
    assert graph.edge_index.tolist() == [list(edge) for edge in sorted(set(edges))]
    assert len(set(edges)) < len(edges), "one operand is used twice"
    assert graph.instruction_names == tuple(i.name for i in instructions)
    names = ["unknown", *OPCODE_NAMES]
    opcodes = [i.opcode if i.opcode != "erf" else "unknown" for i in instructions]
    assert [names[number] for number in graph.node_opcode] == opcodes
    dtypes = [graph.node_feat.dtype, graph.node_opcode.dtype, graph.edge_index.dtype]
    assert dtypes == [np.float32, np.uint8, np.int64]


def test_boundaries_follow_major_computations_and_the_end() -> None:
    assert featurize_module(small_module()).node_splits.tolist() == [[0, 6, 8, 20]]
    build = ModuleBuilder()
    build.computation("cluster_7")
    build.add("parameter")
    graph = featurize_module(build.module)
    assert graph.node_splits.tolist() == [[0, 1]]
    assert graph.node_splits.dtype == np.int64
    assert graph.edge_index.shape == (0, 2)


def test_sums_and_products_cover_all_values_and_wrap_at_64_bits() -> None:
    assert sequence_features([2, 3, 5], 2) == [2, 3, 10, 30]
    assert sequence_features([], 2) == [0, 0, 0, 1]
    assert sequence_features([1 << 40, 1 << 40], 1) == [1 << 40, 1 << 41, 0]
    assert sequence_features([(1 << 62), 2], 0)[1] == -(1 << 63)
    assert sequence_features([3**40] * 9, 0)[1] == ((3**360 + 2**63) % 2**64) - 2**63


def main_of(module: Any, number: int) -> Any:
    return module.computations[3].instructions[number]


def first(numbers: Any, value: int) -> None:
    numbers[0] = value


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda m: first(main_of(m, 2).operand_ids, 99_999), "operand 99999"),
        (lambda m: first(main_of(m, 2).operand_ids, main_of(m, 5).id), "among what comes before"),
        (lambda m: first(main_of(m, 7).called_computation_ids, 99_999), "called computation 99999"),
        (
            lambda m: setattr(m.computations[3], "root_id", m.computations[0].root_id),
            "computation 'main'",
        ),
        (lambda m: setattr(main_of(m, 1), "id", main_of(m, 0).id), "occurs twice"),
        (lambda m: first(main_of(m, 0).shape.layout.minor_to_major, 1), "layout [1, 0, 2, 1]"),
        (lambda m: setattr(main_of(m, 0), "opcode", ""), "no operation"),
        (lambda m: m.ClearField("computations"), "no instruction"),
    ],
)
def test_inconsistent_module_is_one_line(spoil: Callable[[Any], object], said: str) -> None:
    module = small_module()
    spoil(module)
    with pytest.raises(PipelineError) as caught:
        featurize_module(module, source="given.pb")
    line = str(caught.value)
    assert line.startswith("given.pb: ") and said in line and "\n" not in line


def test_opcodes_are_numbered_as_in_the_dataset() -> None:
    known = {"abs": 1, "convolution": 26, "dot": 34, "parameter": 63, "reshape": 75, "tan": 120}
    assert {name: OPCODES[name] for name in known} == known
    assert len(OPCODES) == 120


def test_bytes_of_an_element_type_are_those_of_its_name() -> None:
    for kind, n_bytes in zip(ELEMENT_TYPES, ELEMENT_BYTES, strict=True):
        bits = "".join(filter(str.isdigit, kind))
        assert n_bytes == (int(bits) // 8 if bits else int(kind == "pred")), kind
