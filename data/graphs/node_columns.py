"""The names and the order of the 140 node features, and of the opcodes.

The order is a fact of the dataset's format. Each instruction has its shape, its dimensions, its
window, its convolution dimension numbers, its slices and paddings, and its layout.
"""

RANK_MAX = 6

ELEMENT_TYPES = (
    *("invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"),
    *("f16", "f32", "f64", "bf16", "c64", "c128", "tuple", "opaque", "token"),
)
# Bytes of one element, in the order of ELEMENT_TYPES; 0 for types without elements.
ELEMENT_BYTES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0)


def _columns(prefix: str, count: int, *totals: str) -> list[str]:
    return [f"{prefix}_{i}" for i in (*range(count), *totals)]


_WINDOW = ("size", "stride", "padding_low", "padding_high", "window_dilation", "base_dilation")
_SUMS = ("sum", "product")
NODE_FEATURE_NAMES = (
    *("is_root", "element_size_in_bits"),
    *(f"shape_element_type_is_{kind}" for kind in ELEMENT_TYPES),
    *_columns("shape_dimensions", 6, *_SUMS),
    *("shape_tuple_shapes_size", "parameter_number"),
    *_columns("dimensions", 6),
    *(name for part in _WINDOW for name in _columns(f"window_{part}", 6, *_SUMS)),
    *_columns("window_window_reversal", 6, "true_count", "false_count"),
    *("convolution_dim_numbers_input_batch_dim", "convolution_dim_numbers_input_feature_dim"),
    *_columns("convolution_dim_numbers_input_spatial_dims", 4),
    "convolution_dim_numbers_kernel_input_feature_dim",
    "convolution_dim_numbers_kernel_output_feature_dim",
    *_columns("convolution_dim_numbers_kernel_spatial_dims", 4),
    *("convolution_dim_numbers_output_batch_dim", "convolution_dim_numbers_output_feature_dim"),
    *("feature_group_count", "batch_group_count"),
    *_columns("slice_dims_start", 2, *_SUMS),
    *_columns("slice_dims_stride", 2, *_SUMS),
    *_columns("slice_dims_limit", 2, *_SUMS),
    *_columns("dynamic_slice_sizes", 2, *_SUMS),
    *_columns("padding_config_edge_padding_low", 2, *_SUMS),
    *_columns("padding_config_edge_padding_high", 2, *_SUMS),
    "is_stable",
    *_columns("layout_minor_to_major", 6),
)
COLUMN_OF = {name: column for column, name in enumerate(NODE_FEATURE_NAMES)}

ELEMENT_TYPE = slice(2, 21)
SHAPE_DIMENSIONS = slice(21, 27)
SHAPE_PRODUCT = 28
MINOR_TO_MAJOR = slice(134, 140)

# Columns with a dimension number or a 0/1 flag, of which a logarithm is meaningless.
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
