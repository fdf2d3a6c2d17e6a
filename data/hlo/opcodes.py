"""The dataset's own numbering of HLO operations; 0 stands for one that it does not know."""

UNKNOWN = 0

# Numbered from 1 in this order, a fact of the dataset's files. Newer operations of XLA are unknown.
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

OPCODE_NUMBERS = {name: number for number, name in enumerate(OPCODE_NAMES, start=1)}
