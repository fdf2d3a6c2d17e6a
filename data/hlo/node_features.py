"""The 140 stock features of HLO instructions, in the order of data.graphs.node_columns."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.graphs.node_columns import ELEMENT_TYPES, MINOR_TO_MAJOR, NODE_FEATURE_NAMES, RANK_MAX
from data.graphs.node_layouts import Padding

PADDINGS: tuple[Padding, ...] = ("zero", "minus-one")

_COLUMN = {name: column for column, name in enumerate(NODE_FEATURE_NAMES)}
# XLA's numbers of the element types that have a column; newer types (fp8, int4) have none.
_TYPES = (*ELEMENT_TYPES[:13], "tuple", "opaque", "c64", "bf16", "token", "c128")
_TYPE_COLUMNS = [_COLUMN[f"shape_element_type_is_{name}"] for name in _TYPES]
# The product of an empty list is 1: what a column holds where an instruction has no such field.
_ABSENT = np.array([name.endswith("_product") for name in NODE_FEATURE_NAMES], dtype=np.int64)

_WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")
_SLICES = ("start", "stride", "limit")
_EDGES = ("edge_padding_low", "edge_padding_high")
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
        _fill_lists(row, instruction)
        if instruction.HasField("convolution_dimension_numbers"):
            _fill_convolution(row, instruction.convolution_dimension_numbers)
    return values.astype(np.float32)


def sequence_features(values: Sequence[int], width: int) -> list[int]:
    """Return the first `width` values padded with 0, then sum and product of all of them.

    Sum and product wrap around at 64 bits, as they do in the dataset.
    """
    product = 1
    for value in values:  # wrapped in each step: whole, it would grow with the square of the list
        product = _wrap(product * value)
    return [*_padded(values, width), _wrap(sum(values)), product]


def _padded(values: Sequence[int], width: int) -> list[int]:
    return [*values[:width], *[0] * (width - len(values))]


def _wrap(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _fill_shape(row: NDArray[np.int64], shape: Any) -> None:
    if 0 <= shape.element_type < len(_TYPE_COLUMNS):
        row[_TYPE_COLUMNS[shape.element_type]] = 1
    if shape.dimensions:
        _put(row, "shape_dimensions_0", sequence_features(shape.dimensions, RANK_MAX))
        _put(row, "layout_minor_to_major_0", shape.layout.minor_to_major[:RANK_MAX])
    elif shape.tuple_shapes:
        row[_COLUMN["shape_tuple_shapes_size"]] = len(shape.tuple_shapes)


def _fill_attributes(row: NDArray[np.int64], instruction: Any) -> None:
    row[_COLUMN["parameter_number"]] = instruction.parameter_number
    row[_COLUMN["feature_group_count"]] = instruction.feature_group_count
    row[_COLUMN["batch_group_count"]] = instruction.batch_group_count
    row[_COLUMN["is_stable"]] = instruction.is_stable
    if instruction.dimensions:
        _put(row, "dimensions_0", instruction.dimensions[:RANK_MAX])
    if sizes := instruction.dynamic_slice_sizes:
        _put(row, "dynamic_slice_sizes_0", sequence_features(sizes, _SLICE_MAX))


def _fill_lists(row: NDArray[np.int64], instruction: Any) -> None:
    """Fill a sequence per field of the messages that an instruction lists."""
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
        *_padded(numbers.input_spatial_dimensions, _SPATIAL_MAX),
        numbers.kernel_input_feature_dimension,
        numbers.kernel_output_feature_dimension,
        *_padded(numbers.kernel_spatial_dimensions, _SPATIAL_MAX),
        numbers.output_batch_dimension,
        numbers.output_feature_dimension,
    ]
    _put(row, "convolution_dim_numbers_input_batch_dim", values)


def _put(row: NDArray[np.int64], first: str, values: Sequence[int]) -> None:
    column = _COLUMN[first]
    row[column : column + len(values)] = values
