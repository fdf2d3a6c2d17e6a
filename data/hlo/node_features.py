"""The 140 stock features of HLO instructions, in the order of data.graphs.node_columns."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_NODE_FEATURES
from data.graphs.node_columns import ELEMENT_TYPES, MINOR_TO_MAJOR, NODE_FEATURE_NAMES, RANK_MAX
from data.graphs.node_layouts import Padding

PADDINGS: tuple[Padding, ...] = ("zero", "minus-one")

_COLUMN = {name: column for column, name in enumerate(NODE_FEATURE_NAMES)}
# XLA's numbers of the element types that have a column; newer types (fp8, int4) have none.
_TYPE_NUMBERS = {name: number for number, name in enumerate(ELEMENT_TYPES[:13])} | {
    "tuple": 13,
    "opaque": 14,
    "c64": 15,
    "bf16": 16,
    "token": 17,
    "c128": 18,
}
_TYPE_COLUMN = {
    number: _COLUMN[f"shape_element_type_is_{name}"] for name, number in _TYPE_NUMBERS.items()
}
# The product of an empty list is 1: what a column holds where an instruction has no such field.
_ABSENT = np.array([name.endswith("_product") for name in NODE_FEATURE_NAMES], dtype=np.int64)

_SHAPE = _COLUMN["shape_dimensions_0"]
_DIMENSIONS = _COLUMN["dimensions_0"]
_WINDOW = {
    field: _COLUMN[f"window_{field}_0"]
    for field in ("size", "stride", "padding_low", "padding_high", "window_dilation")
} | {"base_dilation": _COLUMN["window_base_dilation_0"]}
_REVERSAL = _COLUMN["window_window_reversal_0"]
_CONVOLUTION = _COLUMN["convolution_dim_numbers_input_batch_dim"]
_SLICE = {part: _COLUMN[f"slice_dims_{part}_0"] for part in ("start", "stride", "limit")}
_EDGE_PADDING = {
    part: _COLUMN[f"padding_config_{part}_0"] for part in ("edge_padding_low", "edge_padding_high")
}
_DYNAMIC_SLICE = _COLUMN["dynamic_slice_sizes_0"]
_SPATIAL_MAX = 4
_SLICE_MAX = 2


def node_features(
    instructions: Sequence[Any], roots: Iterable[int], *, padding: Padding
) -> NDArray[np.float32]:
    """Compute the stock features of instructions.

    Args:
        instructions: n messages HloInstructionProto, in node order.
        padding: what fills `layout_minor_to_major` beyond a tensor's rank: 0, as the dataset has
            it, or -1, which cannot be taken for a dimension number.

    Returns:
        (n, 140) float32.
    """
    # Every feature is a whole number; one rounding from int64 is how the dataset got its float32.
    values = np.repeat(_ABSENT[None], len(instructions), axis=0)
    if padding == "minus-one":
        values[:, MINOR_TO_MAJOR] = -1
    values[list(roots), _COLUMN["is_root"]] = 1
    for row, instruction in zip(values, instructions, strict=True):
        _fill_shape(row, instruction.shape)
        _fill_attributes(row, instruction)
        if instruction.HasField("window"):
            _fill_window(row, instruction.window.dimensions)
        if instruction.HasField("convolution_dimension_numbers"):
            _fill_convolution(row, instruction.convolution_dimension_numbers)
        if instruction.slice_dimensions:
            _fill_columns(row, _SLICE, instruction.slice_dimensions, _SLICE_MAX)
        if instruction.HasField("padding_config"):
            _fill_columns(row, _EDGE_PADDING, instruction.padding_config.dimensions, _SLICE_MAX)
    assert values.shape == (len(instructions), N_NODE_FEATURES)
    return values.astype(np.float32)


def sequence_features(values: Sequence[int], width: int) -> list[int]:
    """Return the first `width` values padded with 0, then sum and product of all of them.

    Sum and product wrap around at 64 bits, as they do in the dataset.
    """
    leading = list(values[:width])
    product = 1
    for value in values:  # wrapped in each step: whole, it would grow with the square of the list
        product = _wrap(product * value)
    return [*leading, *[0] * (width - len(leading)), _wrap(sum(values)), product]


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _fill_shape(row: NDArray[np.int64], shape: Any) -> None:
    column = _TYPE_COLUMN.get(shape.element_type)
    if column is not None:
        row[column] = 1
    if shape.dimensions:
        _put(row, _SHAPE, sequence_features(shape.dimensions, RANK_MAX))
        _put(row, MINOR_TO_MAJOR.start, shape.layout.minor_to_major[:RANK_MAX])
    elif shape.tuple_shapes:
        row[_COLUMN["shape_tuple_shapes_size"]] = len(shape.tuple_shapes)


def _fill_attributes(row: NDArray[np.int64], instruction: Any) -> None:
    row[_COLUMN["parameter_number"]] = instruction.parameter_number
    row[_COLUMN["feature_group_count"]] = instruction.feature_group_count
    row[_COLUMN["batch_group_count"]] = instruction.batch_group_count
    row[_COLUMN["is_stable"]] = instruction.is_stable
    if instruction.dimensions:
        _put(row, _DIMENSIONS, instruction.dimensions[:RANK_MAX])
    if instruction.dynamic_slice_sizes:
        _put(row, _DYNAMIC_SLICE, sequence_features(instruction.dynamic_slice_sizes, _SLICE_MAX))


def _fill_window(row: NDArray[np.int64], dimensions: Sequence[Any]) -> None:
    if not dimensions:
        return
    _fill_columns(row, _WINDOW, dimensions, RANK_MAX)
    flags = [dimension.window_reversal for dimension in dimensions]
    _put(row, _REVERSAL, flags[:RANK_MAX])
    _put(row, _REVERSAL + RANK_MAX, [sum(flags), len(flags) - sum(flags)])


def _fill_convolution(row: NDArray[np.int64], numbers: Any) -> None:
    """Fill a convolution's dimension numbers into a row (140,), in the order of the columns."""
    values = [
        numbers.input_batch_dimension,
        numbers.input_feature_dimension,
        *sequence_features(numbers.input_spatial_dimensions, _SPATIAL_MAX)[:_SPATIAL_MAX],
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
        *sequence_features(numbers.kernel_spatial_dimensions, _SPATIAL_MAX)[:_SPATIAL_MAX],
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
    ]
    _put(row, _CONVOLUTION, values)


def _fill_columns(
    row: NDArray[np.int64], columns: dict[str, int], parts: Sequence[Any], width: int
) -> None:
    """Fill one sequence per field of `parts`, a list of messages, into a row (140,)."""
    for field, column in columns.items():
        _put(row, column, sequence_features([getattr(part, field) for part in parts], width))


def _put(row: NDArray[np.int64], column: int, values: Sequence[int]) -> None:
    row[column : column + len(values)] = values
