"""Which of the 140 node features is which, and what a node's layout says without its padding.

The order is a fact of the dataset's format: for each instruction its shape, its dimensions, its
window, its convolution dimension numbers, its slices and paddings, and its layout.

The stock `layout_minor_to_major` lists are padded with 0, which is also a legal dimension number,
so a rank-2 order (1, 0) and a rank-3 order (1, 0, 2) cut short look alike. The rank can be had
back exactly: a minor-to-major list is a permutation of 0..rank-1, so its largest entry is
rank - 1; where that is 0, the tensor has rank 1 if it has a dimension at all, else rank 0.
"""

import numpy as np
from numpy.typing import NDArray

from data.graphs.packing import N_SYMBOLS, VALUES_PER_TENSOR

RANK_MAX = 6

ELEMENT_TYPES = (
    *("invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"),
    *("f16", "f32", "f64", "bf16", "c64", "c128", "tuple", "opaque", "token"),
)
# Bytes of one element, in the order of ELEMENT_TYPES; 0 for what has no elements of its own.
ELEMENT_BYTES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0)


def _numbered(prefix: str, count: int, *totals: str) -> list[str]:
    return [f"{prefix}_{i}" for i in (*range(count), *totals)]


_WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")
_SUMS = ("sum", "product")
NODE_FEATURE_NAMES = (
    *("is_root", "element_size_in_bits"),
    *(f"shape_element_type_is_{kind}" for kind in ELEMENT_TYPES),
    *_numbered("shape_dimensions", 6, *_SUMS),
    *("shape_tuple_shapes_size", "parameter_number"),
    *_numbered("dimensions", 6),
    *(name for part in _WINDOW for name in _numbered(f"window_{part}", 6, *_SUMS)),
    *_numbered("window_window_reversal", 6, "true_count", "false_count"),
    *("convolution_dim_numbers_input_batch_dim", "convolution_dim_numbers_input_feature_dim"),
    *_numbered("convolution_dim_numbers_input_spatial_dims", 4),
    "convolution_dim_numbers_kernel_input_feature_dim",
    "convolution_dim_numbers_kernel_output_feature_dim",
    *_numbered("convolution_dim_numbers_kernel_spatial_dims", 4),
    *("convolution_dim_numbers_output_batch_dim", "convolution_dim_numbers_output_feature_dim"),
    *("feature_group_count", "batch_group_count"),
    *_numbered("slice_dims_start", 2, *_SUMS),
    *_numbered("slice_dims_stride", 2, *_SUMS),
    *_numbered("slice_dims_limit", 2, *_SUMS),
    *_numbered("dynamic_slice_sizes", 2, *_SUMS),
    *_numbered("padding_config_edge_padding_low", 2, *_SUMS),
    *_numbered("padding_config_edge_padding_high", 2, *_SUMS),
    "is_stable",
    *_numbered("layout_minor_to_major", 6),
)
COLUMN_OF = {name: column for column, name in enumerate(NODE_FEATURE_NAMES)}

ELEMENT_TYPE = slice(2, 21)
SHAPE_DIMENSIONS = slice(21, 27)
SHAPE_PRODUCT = 28
MINOR_TO_MAJOR = slice(134, 140)

# Columns that name a dimension or hold a 0/1 flag; a logarithm of them would mean nothing.
CATEGORICAL = tuple(
    i
    for i, name in enumerate(NODE_FEATURE_NAMES)
    if name.startswith(("is_", "shape_element_type", "dimensions_", "convolution_dim_numbers"))
    or name.startswith(("layout_minor_to_major", "window_window_reversal"))
)

# The dataset's own numbering of HLO operations, from 1 in this order. Newer ones are unknown.
UNKNOWN_OPCODE = 0
_IN_ORDER = """
    abs add add-dependency after-all all-reduce all-to-all atan2 batch-norm-grad
    batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call ceil
    cholesky clamp collective-permute count-leading-zeros compare complex concatenate
    conditional constant convert convolution copy copy-done copy-start cosine custom-call divide
    domain dot dynamic-slice dynamic-update-slice exponential exponential-minus-one fft floor
    fusion gather get-dimension-size set-dimension-size get-tuple-element imag infeed iota
    is-finite log log-plus-one and not or xor map maximum minimum multiply negate outfeed pad
    parameter partition-id popcnt power real recv recv-done reduce reduce-precision
    reduce-window remainder replica-id reshape reverse rng rng-get-and-update-state
    rng-bit-generator round-nearest-afz rsqrt scatter select select-and-scatter send send-done
    shift-left shift-right-arithmetic shift-right-logical sign sine slice sort sqrt subtract
    tanh trace transpose triangular-solve tuple tuple-select while cbrt all-gather
    collective-permute-start collective-permute-done logistic dynamic-reshape all-reduce-start
    all-reduce-done reduce-scatter all-gather-start all-gather-done opt-barrier async-start
    async-update async-done round-nearest-even stochastic-convert tan
"""
OPCODE_NAMES = tuple(_IN_ORDER.split())
OPCODES = {name: number for number, name in enumerate(OPCODE_NAMES, start=1)}


def tensor_ranks(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each node's output rank, (n,) int64 of (n, 140) features; without dimensions 0."""
    largest = node_feat[:, MINOR_TO_MAJOR].max(axis=1)
    has_dimension = node_feat[:, SHAPE_DIMENSIONS.start] > 0
    return np.where(largest > 0, largest + 1, has_dimension).astype(np.int64)


def minor_to_major(node_feat: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return each node's layout, minor dimension first, -1 beyond its rank; (n, 6) int8."""
    order = node_feat[:, MINOR_TO_MAJOR].astype(np.int8)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int8(-1), order)


def dimension_sizes(node_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return each node's output dimensions, -1 beyond its rank; (n, 6) int64.

    A legal size of 0 (an empty tensor) stays 0.
    """
    sizes = node_feat[:, SHAPE_DIMENSIONS].astype(np.int64)
    absent = np.arange(RANK_MAX) >= tensor_ranks(node_feat)[:, None]
    return np.where(absent, np.int64(-1), sizes)


def layout_symbols(values: NDArray[np.int8]) -> NDArray[np.int64]:
    """Map layout values -1..5 to embedding rows 0..6; any shape, int64."""
    return values.astype(np.int64) + 1


def minor_codes(values: NDArray[np.int8]) -> NDArray[np.int8]:
    """Pack the two minor dimensions of each layout into one number 0..48, 0 if none is named.

    They decide how a tensor is cut into the TPU's 8 x 128 tiles, and configs often name no more.
    Of t layouts side by side, (…, 6·t) int8 values -1..5: (…, t) int8.
    """
    first = values[..., 0::VALUES_PER_TENSOR]
    second = values[..., 1::VALUES_PER_TENSOR]
    return (first + 1) * np.int8(N_SYMBOLS) + second + 1
