"""Which of the 140 node features is which.

The order is a fact of the dataset's format: for each instruction its shape, its dimensions, its
window, its convolution dimension numbers, its slices and paddings, and its layout.
"""

RANK_MAX = 6

FLOATS_AND_OTHERS = ("f16", "f32", "f64", "bf16", "c64", "c128", "tuple", "opaque", "token")
ELEMENT_TYPES = (
    *("invalid", "pred", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"),
    *FLOATS_AND_OTHERS,
)
# Bytes of one element, in the order of ELEMENT_TYPES; 0 for what has no elements of its own.
ELEMENT_BYTES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2, 8, 16, 0, 0, 0)


def _numbered(prefix: str, count: int, *totals: str) -> list[str]:
    return [f"{prefix}_{i}" for i in range(count)] + [f"{prefix}_{name}" for name in totals]


def _build_names() -> tuple[str, ...]:
    names = ["is_root", "element_size_in_bits"]
    names += [f"shape_element_type_is_{kind}" for kind in ELEMENT_TYPES]
    names += _numbered("shape_dimensions", 6, "sum", "product")
    names += ["shape_tuple_shapes_size", "parameter_number"]
    names += _numbered("dimensions", 6)
    for part in ("size", "stride", "padding_low", "padding_high"):
        names += _numbered(f"window_{part}", 6, "sum", "product")
    for part in ("window_dilation", "base_dilation"):
        names += _numbered(f"window_{part}", 6, "sum", "product")
    names += _numbered("window_window_reversal", 6, "true_count", "false_count")
    convolution = "convolution_dim_numbers"
    names += [f"{convolution}_input_batch_dim", f"{convolution}_input_feature_dim"]
    names += _numbered(f"{convolution}_input_spatial_dims", 4)
    names += [f"{convolution}_kernel_input_feature_dim", f"{convolution}_kernel_output_feature_dim"]
    names += _numbered(f"{convolution}_kernel_spatial_dims", 4)
    names += [f"{convolution}_output_batch_dim", f"{convolution}_output_feature_dim"]
    names += ["feature_group_count", "batch_group_count"]
    for part in ("start", "stride", "limit"):
        names += _numbered(f"slice_dims_{part}", 2, "sum", "product")
    names += _numbered("dynamic_slice_sizes", 2, "sum", "product")
    for part in ("low", "high"):
        names += _numbered(f"padding_config_edge_padding_{part}", 2, "sum", "product")
    names += ["is_stable"]
    names += _numbered("layout_minor_to_major", 6)
    return tuple(names)


NODE_FEATURE_NAMES = _build_names()

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
