"""Convert an HLO module to the arrays of a graph: nodes, edges and computation boundaries.

Nodes have the dataset's 140 features, in the order of data.graphs.node_columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from data.graphs.node_columns import (
    COLUMN_OF,
    ELEMENT_TYPES,
    NODE_FEATURE_NAMES,
    OPCODES,
    RANK_MAX,
    UNKNOWN_OPCODE,
)
from data.hlo.files import FIXED_SHAPES
from data.npz.archive import shown

# In the dataset a boundary follows each computation that is named like one of these, and the last.
SPLIT_NAMES = ("cluster", "while", "cond")

# XLA's numbers of the element types that have a column, and of the newer types, which have none.
_NEW_TYPES = (
    *("f8e5m2", "f8e4m3fn", "s4", "u4", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "s2", "u2"),
    *("f8e4m3", "f8e3m4", "s1", "u1", "f4e2m1fn", "f8e8m0fnu", "buffer"),
)
_TYPES = (*ELEMENT_TYPES[:13], "tuple", "opaque", "c64", "bf16", "token", "c128")
_TYPE_COLUMNS = [COLUMN_OF[f"shape_element_type_is_{name}"] for name in _TYPES]
# The product of an empty list is 1, so this is the value of an instruction without such a field.
_ABSENT = np.array([name.endswith("_product") for name in NODE_FEATURE_NAMES], dtype=np.int64)

_WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")
_SLICES = ("start", "stride", "limit")
_EDGES = ("edge_padding_low", "edge_padding_high")
_SPATIAL_MAX = 4
_SLICE_MAX = 2


@dataclass(frozen=True)
class HloGraph:
    """One HLO module in the dataset's format.

    Nodes are the instructions, in the order of the module's computations.
    """

    name: str
    node_feat: NDArray[np.float32]  # (n, 140)
    node_opcode: NDArray[np.uint8]  # (n,) 0 for operations unknown to the dataset
    # (e, 2) sorted, each once; a row [u, v] means that u consumes v: v is an operand of u, or the
    # root of a computation that u calls. u > v.
    edge_index: NDArray[np.int64]
    node_splits: NDArray[np.int64]  # (1, s) boundaries of the module's major computations
    instruction_names: tuple[str, ...]  # n names, unique in modules that XLA wrote
    # Opcodes and element types without a number in the dataset, sorted.
    unknown: tuple[str, ...] = ()

    @property
    def n_nodes(self) -> int:
        return len(self.node_opcode)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the dataset's files that no config changes, by key."""
        keys = ("node_feat", "node_opcode", "edge_index", "node_splits")
        return {key: getattr(self, key) for key in keys}


def featurize_module(module: Any, *, source: str | None = None) -> HloGraph:
    """Convert an HLO module, a message of data.hlo.descriptor, to a graph."""
    source = source or f"HLO module '{shown(module.name)}'"
    instructions = [i for computation in module.computations for i in computation.instructions]
    if not instructions:
        raise PipelineError(f"{source}: the module has no instruction; expected at least one")
    positions = _positions(instructions, source)
    roots = _roots(module, positions, source)
    _check_instructions(instructions, source)
    sizes = [len(computation.instructions) for computation in module.computations]
    ends = np.cumsum(sizes, dtype=np.int64)
    return HloGraph(
        name=module.name,
        node_feat=node_features(instructions, roots.values()),
        node_opcode=np.array(
            [OPCODES.get(i.opcode, UNKNOWN_OPCODE) for i in instructions], dtype=np.uint8
        ),
        edge_index=_edges(instructions, positions, roots, source),
        node_splits=_node_splits([c.name for c in module.computations], ends),
        instruction_names=tuple(i.name for i in instructions),
        unknown=_unknown(instructions),
    )


def _positions(instructions: list[Any], source: str) -> dict[int, int]:
    positions = {instruction.id: node for node, instruction in enumerate(instructions)}
    if len(positions) < len(instructions):
        twice = next(i for node, i in enumerate(instructions) if positions[i.id] != node)
        raise PipelineError(
            f"{source}: instruction id {twice.id} occurs twice; expected each once in the module"
        )
    return positions


def _roots(module: Any, positions: dict[int, int], source: str) -> dict[int, int]:
    roots: dict[int, int] = {}
    start = 0
    for computation in module.computations:
        end = start + len(computation.instructions)
        root = positions.get(computation.root_id, -1)
        if computation.id in roots or not start <= root < end:
            raise PipelineError(
                f"{source}: computation '{shown(computation.name)}': its id {computation.id} is "
                f"taken or its root {computation.root_id} is not in it; is the file damaged?"
            )
        roots[computation.id] = root
        start = end
    return roots


def _unknown(instructions: list[Any]) -> tuple[str, ...]:
    numbers = {i.shape.element_type - len(_TYPES) for i in instructions}
    types = {name for number, name in enumerate(_NEW_TYPES) if number in numbers}
    return tuple(sorted({i.opcode for i in instructions} - OPCODES.keys() | types))


def _edges(
    instructions: list[Any], positions: dict[int, int], roots: dict[int, int], source: str
) -> NDArray[np.int64]:
    pairs = set()
    for node, instruction in enumerate(instructions):
        for kind, keys, places in (
            ("operand", instruction.operand_ids, positions),
            ("called computation", instruction.called_computation_ids, roots),
        ):
            for key in keys:
                producer = places.get(key, node)
                if producer >= node:
                    raise PipelineError(
                        f"{source}: instruction '{shown(instruction.name)}': {kind} {key} is not "
                        "among what comes before it; expected callees and operands first"
                    )
                pairs.add((node, producer))
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _node_splits(names: list[str], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    major = [any(part in name for part in SPLIT_NAMES) for name in names]
    bounds = [0, *ends[major].tolist()]
    if bounds[-1] < ends[-1]:
        bounds.append(int(ends[-1]))
    return np.array([bounds], dtype=np.int64)


def _check_instructions(instructions: list[Any], source: str) -> None:
    for instruction in instructions:
        rank = len(instruction.shape.dimensions)
        order = instruction.shape.layout.minor_to_major
        if min(instruction.shape.dimensions, default=0) < 0:
            raise PipelineError(
                f"{source}: instruction '{shown(instruction.name)}' has "
                f"a dimension of unknown size; expected sizes; {FIXED_SHAPES}"
            )
        if not instruction.opcode or (len(order) and sorted(order) != list(range(rank))):
            problem = f"layout {list(order)[:8]} of a tensor of {rank} dimensions"
            raise PipelineError(
                f"{source}: instruction '{shown(instruction.name)}': "
                f"{problem if instruction.opcode else 'no operation'}; is the file damaged?"
            )


def node_features(instructions: Sequence[Any], roots: Iterable[int]) -> NDArray[np.float32]:
    """Return the features of instructions, (n, 140). Layouts are padded with 0."""
    # Every feature is an integer. The dataset has rounded it once, from int64 to float32.
    values = np.repeat(_ABSENT[None], len(instructions), axis=0)
    values[list(roots), COLUMN_OF["is_root"]] = 1
    for row, instruction in zip(values, instructions, strict=True):
        _fill_shape(row, instruction.shape)
        _fill_attributes(row, instruction)
        _fill_lists(row, instruction)
        if instruction.HasField("convolution_dimension_numbers"):
            _fill_convolution(row, instruction.convolution_dimension_numbers)
    return values.astype(np.float32)


def sequence_features(values: Sequence[int], width: int) -> list[int]:
    """Return the first `width` values of a list, padded with 0, and the sum and product of all.

    Sum and product wrap around at 64 bits, as they do in the dataset.
    """
    product = 1
    # The exact product of a long list would be huge, so each step wraps around.
    for value in values:
        product = _wrap(product * value)
    return [*_pad(values, width), _wrap(sum(values)), product]


def _pad(values: Sequence[int], width: int) -> list[int]:
    return [*values[:width], *[0] * (width - len(values))]


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _fill_shape(row: NDArray[np.int64], shape: Any) -> None:
    if 0 <= shape.element_type < len(_TYPE_COLUMNS):
        row[_TYPE_COLUMNS[shape.element_type]] = 1
    row[COLUMN_OF["element_size_in_bits"]] = shape.layout.element_size_in_bits
    if shape.dimensions:
        _put(row, "shape_dimensions_0", sequence_features(shape.dimensions, RANK_MAX))
        _put(row, "layout_minor_to_major_0", shape.layout.minor_to_major[:RANK_MAX])
    elif shape.tuple_shapes:
        row[COLUMN_OF["shape_tuple_shapes_size"]] = len(shape.tuple_shapes)


def _fill_attributes(row: NDArray[np.int64], instruction: Any) -> None:
    row[COLUMN_OF["parameter_number"]] = instruction.parameter_number
    row[COLUMN_OF["feature_group_count"]] = instruction.feature_group_count
    row[COLUMN_OF["batch_group_count"]] = instruction.batch_group_count
    row[COLUMN_OF["is_stable"]] = instruction.is_stable
    if instruction.dimensions:
        _put(row, "dimensions_0", instruction.dimensions[:RANK_MAX])
    if sizes := instruction.dynamic_slice_sizes:
        _put(row, "dynamic_slice_sizes_0", sequence_features(sizes, _SLICE_MAX))


def _fill_lists(row: NDArray[np.int64], instruction: Any) -> None:
    window = instruction.window.dimensions
    for parts, prefix, width, fields in (
        (window, "window", RANK_MAX, _WINDOW),
        (instruction.slice_dimensions, "slice_dims", _SLICE_MAX, _SLICES),
        (instruction.padding_config.dimensions, "padding_config", _SLICE_MAX, _EDGES),
    ):
        for field in fields if parts else ():
            values = [getattr(part, field) for part in parts]
            _put(row, f"{prefix}_{field}_0", sequence_features(values, width))
    flags = [dimension.window_reversal for dimension in window]
    _put(row, "window_window_reversal_0", flags[:RANK_MAX])
    _put(row, "window_window_reversal_true_count", [sum(flags), len(flags) - sum(flags)])


def _fill_convolution(row: NDArray[np.int64], numbers: Any) -> None:
    values = [
        numbers.input_batch_dimension,
        numbers.input_feature_dimension,
        *_pad(numbers.input_spatial_dimensions, _SPATIAL_MAX),
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
        *_pad(numbers.kernel_spatial_dimensions, _SPATIAL_MAX),
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
    ]
    _put(row, "convolution_dim_numbers_input_batch_dim", values)


def _put(row: NDArray[np.int64], first: str, values: Sequence[int]) -> None:
    column = COLUMN_OF[first]
    row[column : column + len(values)] = values
