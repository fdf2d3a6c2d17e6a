"""A block's work on nodes as Triton kernels, which models/layout/fused_ops.py launches.

A kernel moves each value to or from the memory once. Later reads hit a cache. No kernel uses
atomics, so the same input gives the same bytes. Sums, norms and softmaxes are always float32. Loops
over rows sum tensors of a tile's shape and reduce them once at the end, because a reduction makes
the warps of a program wait. Loops over channels do not hoist, which would take registers.

Widths (h, a, and the tile sizes in capitals) are constants at compile time, because wide loads need
a known alignment. Counts (n, c, rows) are arguments, so a new graph needs no compilation.

Shapes: n nodes, c configs, h channels, a bottleneck channels. H, C and A are h, c and a rounded up
to a power of two.
"""

import triton
import triton.language as tl

from models.layout.norm_kernels import norm, norm_backward, pool, pool_backward  # noqa: F401

DENSITY: tl.constexpr = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)


@triton.jit
def _normal_cdf(value):
    # The normal distribution as a logistic of an odd polynomial, to an error of 1.9e-5. Float16
    # rounds a tenfold of that. The library's erf takes longer than a load from memory.
    square = tl.minimum(value * value, 40.0)
    power = value * (-2.30172713 + square * (-0.106177323 + square * 9.11226534e-4))
    return 1 / (1 + tl.exp2(power))


@triton.jit
def _gelu(value):
    return value * _normal_cdf(value)


@triton.jit(do_not_specialize=["n_in", "n_out", "c"])
def sparse_rows(
    starts, columns, values, x, addend, out, n_in, n_out, c,
    h: tl.constexpr, parts_in: tl.constexpr, parts_out: tl.constexpr, added_stride: tl.constexpr,
    B: tl.constexpr,
):  # fmt: skip
    """Compute B of the c · h values of one row: out = added + sum of value · x."""
    row = tl.program_id(0)
    place = tl.program_id(1) * B + tl.arange(0, B)
    inside = place < c * h
    config, channel = place // h, place % h
    total = tl.load(addend + row * added_stride + channel, mask=inside, other=0.0).to(tl.float32)
    first, last = tl.load(starts + row), tl.load(starts + row + 1)
    for index in range(first, last):
        column = tl.load(columns + index)
        node, part = (column % n_in).to(tl.int64), column // n_in
        at = ((node * c + config) * parts_in + part) * h + channel
        total += tl.load(values + index) * tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    node, part = (row % n_out).to(tl.int64), row // n_out
    at = ((node * c + config) * parts_out + part) * h + channel
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _matrix(pointer, rows, columns, n_rows, n_columns, row_stride, column_stride):
    mask = (rows < n_rows)[:, None] & (columns < n_columns)[None, :]
    at = rows[:, None] * row_stride + columns[None, :] * column_stride
    return tl.load(pointer + at, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["n_out", "c"])
def aggregate_rows(
    starts, columns, values, x, weights, addend, out, aggregated, n_out, c,
    h: tl.constexpr, added_stride: tl.constexpr, stores: tl.constexpr,
    R: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Compute out = added + sum over 3 parts of (sum of value · x) W, for R configs of a node.

    The sums of value · x go to `aggregated` if it `stores` them.
    """
    node = tl.program_id(0).to(tl.int64)
    config, output = tl.program_id(1) * R + tl.arange(0, R), tl.arange(0, H)
    total = tl.zeros([R, H], tl.float32)
    for part in tl.range(0, 3, disable_licm=True):
        row = starts + part * n_out + node
        first, last = tl.load(row), tl.load(row + 1)
        for begin in tl.range(0, h, K, disable_licm=True):
            channel = begin + tl.arange(0, K)
            sums = tl.zeros([R, K], tl.float32)
            for index in range(first, last):
                start = tl.load(columns + index).to(tl.int64) * c * h
                sums += tl.load(values + index) * _matrix(x + start, config, channel, c, h, h, 1)
            lhs = sums.to(x.dtype.element_ty)
            if stores:
                at = ((node * c + config[:, None]) * 3 + part) * h + channel[None, :]
                mask = (config < c)[:, None] & (channel < h)[None, :]
                tl.store(aggregated + at, lhs, mask=mask)
            rhs = _matrix(weights + part * h * h, channel, output, h, h, h, 1)
            total = tl.dot(lhs, rhs, total, input_precision="ieee")
    added = tl.load(addend + node * added_stride + output, mask=output < h, other=0.0)
    total += added.to(tl.float32)[None, :]
    at = (node * c + config[:, None]) * h + output[None, :]
    mask = (config < c)[:, None] & (output < h)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _softmax(logits, inside):
    logits = tl.where(inside, logits, float("-inf"))
    highest = tl.max(logits, axis=0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    power = tl.exp(logits - highest[None, :])
    total = tl.sum(power, axis=0)
    return power * (1 / tl.where(total == 0, 1.0, total))[None, :]


@triton.jit(do_not_specialize=["c"])
def attend(
    inner, gate, sharpness, out, c, h: tl.constexpr, C: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    """Compute [u, u · w] of u = inner · sigmoid(gate), for all configs of B channels of a node."""
    config = tl.arange(0, C)
    channel = tl.program_id(1) * B + tl.arange(0, B)
    first = tl.program_id(0).to(tl.int64) * c * h
    inside = (config < c)[:, None] & (channel < h)[None, :]
    opened = tl.sigmoid(_matrix(gate + first, config, channel, c, h, h, 1).to(tl.float32))
    message = _matrix(inner + first, config, channel, c, h, h, 1).to(tl.float32) * opened
    weight = _softmax(message * tl.load(sharpness), inside) * c
    at = 2 * first + config[:, None] * 2 * h + channel[None, :]
    tl.store(out + at, message.to(out.dtype.element_ty), mask=inside)
    tl.store(out + at + h, (message * weight).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["c"])
def attend_backward(
    grad, inner, gate, sharpness, of_inner, of_gate, slopes, c,
    h: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Map the gradient of [u, u · w] to those of gelu(y), as a factor of u, and of the gate.

    The gradient of the sharpness is in (nodes, blocks of channels) parts.
    """
    config = tl.arange(0, C)
    channel = tl.program_id(1) * B + tl.arange(0, B)
    first = tl.program_id(0).to(tl.int64) * c * h
    inside = (config < c)[:, None] & (channel < h)[None, :]
    value = _matrix(inner + first, config, channel, c, h, h, 1).to(tl.float32)
    opened = tl.sigmoid(_matrix(gate + first, config, channel, c, h, h, 1).to(tl.float32))
    message, sharp = value * opened, tl.load(sharpness)
    share = _softmax(message * sharp, inside)
    of_weighed = _matrix(grad + 2 * first + h, config, channel, c, h, 2 * h, 1).to(tl.float32) * c
    of_share = of_weighed * message
    of_logits = share * (of_share - tl.sum(share * of_share, axis=0)[None, :])
    slope = tl.sum(tl.sum(of_logits * message, axis=1), axis=0)
    tl.store(slopes + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), slope)
    of_message = _matrix(grad + 2 * first, config, channel, c, h, 2 * h, 1).to(tl.float32)
    of_message = (of_message + of_weighed * share + of_logits * sharp) * opened
    at = first + config[:, None] * h + channel[None, :]
    tl.store(of_inner + at, of_message.to(of_inner.dtype.element_ty), mask=inside)
    of_opened = of_message * value * (1 - opened)
    tl.store(of_gate + at, of_opened.to(of_gate.dtype.element_ty), mask=inside)


@triton.jit
def _bottleneck(
    y, w1, b1, config, c, h: tl.constexpr, a: tl.constexpr,
    C: tl.constexpr, B: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    # Return relu(W1 gelu(y) + b1) for the configs of a node, (C, A).
    unit = tl.arange(0, A)
    total = tl.zeros([C, A], tl.float32)
    for start in tl.range(0, h, B, disable_licm=True):
        channel = start + tl.arange(0, B)
        value = _matrix(y, config, channel, c, h, h, 1)
        inner = _gelu(value.to(tl.float32)).to(value.dtype)
        weight = _matrix(w1, channel, unit, h, a, 1, h)
        total = tl.dot(inner, weight, total, input_precision="ieee")
    bias = tl.load(b1 + unit, mask=unit < a, other=0.0).to(tl.float32)
    return tl.maximum(total + bias[None, :], 0.0).to(y.dtype.element_ty)


@triton.jit
def _opened(small, w2, b2, channel, h: tl.constexpr, a: tl.constexpr, A: tl.constexpr):
    # Return the gate of some channels, from the bottleneck channels (C, A).
    weight = _matrix(w2, tl.arange(0, A), channel, a, h, 1, a)
    bias = tl.load(b2 + channel, mask=channel < h, other=0.0).to(tl.float32)
    return tl.sigmoid(tl.dot(small, weight, input_precision="ieee") + bias[None, :])


@triton.jit(do_not_specialize=["c"])
def attend_and_add(
    x, y, sharpness, w1, b1, w2, b2, weight, bias, out, c,
    h: tl.constexpr, a: tl.constexpr,
    C: tl.constexpr, B: tl.constexpr, H: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Compute x + W [u, u · w] + bias for all configs of a node, B channels of u at a time."""
    config, output = tl.arange(0, C), tl.arange(0, H)
    first = tl.program_id(0).to(tl.int64) * c * h
    small = _bottleneck(y + first, w1, b1, config, c, h, a, C, B, A)
    total, sharp = tl.zeros([C, H], tl.float32), tl.load(sharpness)
    for start in tl.range(0, h, B, disable_licm=True):
        channel = start + tl.arange(0, B)
        inside = (config < c)[:, None] & (channel < h)[None, :]
        value = _matrix(y + first, config, channel, c, h, h, 1)
        message = _gelu(value.to(tl.float32)) * _opened(small, w2, b2, channel, h, a, A)
        weighed = message * _softmax(message * sharp, inside) * c
        rhs = _matrix(weight, channel, output, h, h, 1, 2 * h)
        total = tl.dot(message.to(value.dtype), rhs, total, input_precision="ieee")
        rhs = _matrix(weight + h, channel, output, h, h, 1, 2 * h)
        total = tl.dot(weighed.to(value.dtype), rhs, total, input_precision="ieee")
    total += tl.load(bias + output, mask=output < h, other=0.0).to(tl.float32)[None, :]
    total += _matrix(x + first, config, output, c, h, h, 1).to(tl.float32)
    at = first + config[:, None] * h + output[None, :]
    inside = (config < c)[:, None] & (output < h)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["c"])
def attend_and_add_backward(
    grad, y, sharpness, w1, b1, w2, b2, weight,
    bottleneck, attention, of_inner, of_gate, slopes, of_bias, c,
    h: tl.constexpr, a: tl.constexpr,
    C: tl.constexpr, B: tl.constexpr, A: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Recompute [u, u · w] of a node, and map the gradient of `attend_and_add` to two gradients.

    These are the gradients of gelu(y), as a factor of u, and of the gate. The gradients of the
    sharpness and of the bias are parts by node, for each channel.
    """
    node, config, unit = tl.program_id(0).to(tl.int64), tl.arange(0, C), tl.arange(0, A)
    first, sharp = node * c * h, tl.load(sharpness)
    small = _bottleneck(y + first, w1, b1, config, c, h, a, C, B, A)
    at_small = node * c * a + config[:, None] * a + unit[None, :]
    tl.store(bottleneck + at_small, small, mask=(config < c)[:, None] & (unit < a)[None, :])
    for start in tl.range(0, h, B, disable_licm=True):
        channel = start + tl.arange(0, B)
        inside = (config < c)[:, None] & (channel < h)[None, :]
        of_message, of_weighed = tl.zeros([C, B], tl.float32), tl.zeros([C, B], tl.float32)
        for begin in tl.range(0, h, K, disable_licm=True):
            output = begin + tl.arange(0, K)
            lhs = _matrix(grad + first, config, output, c, h, h, 1)
            rhs = _matrix(weight, output, channel, h, h, 2 * h, 1)
            of_message = tl.dot(lhs, rhs, of_message, input_precision="ieee")
            rhs = _matrix(weight + h, output, channel, h, h, 2 * h, 1)
            of_weighed = tl.dot(lhs, rhs, of_weighed, input_precision="ieee")
        inner = _gelu(_matrix(y + first, config, channel, c, h, h, 1).to(tl.float32))
        opened = _opened(small, w2, b2, channel, h, a, A)
        message = inner * opened
        share = _softmax(message * sharp, inside)
        at = 2 * first + config[:, None] * 2 * h + channel[None, :]
        tl.store(attention + at, message.to(attention.dtype.element_ty), mask=inside)
        weighed = (message * share * c).to(attention.dtype.element_ty)
        tl.store(attention + at + h, weighed, mask=inside)
        of_weighed *= c
        of_share = of_weighed * message
        of_logits = share * (of_share - tl.sum(share * of_share, axis=0)[None, :])
        slope = tl.sum(of_logits * message, axis=0)
        tl.store(slopes + node * h + channel, slope, mask=channel < h)
        of_message = (of_message + of_weighed * share + of_logits * sharp) * opened
        at = first + config[:, None] * h + channel[None, :]
        tl.store(of_inner + at, of_message.to(of_inner.dtype.element_ty), mask=inside)
        of_opened = of_message * inner * (1 - opened)
        tl.store(of_gate + at, of_opened.to(of_gate.dtype.element_ty), mask=inside)
        of_out = _matrix(grad + first, config, channel, c, h, h, 1).to(tl.float32)
        tl.store(of_bias + node * h + channel, tl.sum(of_out, axis=0), mask=channel < h)


@triton.jit(do_not_specialize=["n_rows", "per_program"])
def gate_backward(
    of_inner, of_gate, y, bottleneck, w1, w2, of_y, of_w1, of_b1, of_w2, of_b2, n_rows, per_program,
    h: tl.constexpr, a: tl.constexpr, R: tl.constexpr, H: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Map the gradients of gelu(y), as a factor, and of the gate to the gradient of y.

    The gradients of the weights are parts by program: (a, h), (a,), (h, a) and (h,).
    """
    program = tl.program_id(0)
    channel, unit = tl.arange(0, H), tl.arange(0, A)
    first = _matrix(w1, unit, channel, a, h, h, 1)
    second = _matrix(w2, channel, unit, h, a, a, 1)
    sum_first, sum_second = tl.zeros([A, H], tl.float32), tl.zeros([H, A], tl.float32)
    sum_b1, sum_b2 = tl.zeros([R, A], tl.float32), tl.zeros([R, H], tl.float32)
    for start in range(0, per_program, R):
        place = start + tl.arange(0, R)
        row = program.to(tl.int64) * per_program + place
        valid = (place < per_program) & (row < n_rows)
        inside = valid[:, None] & (channel < h)[None, :]
        mask = valid[:, None] & (unit < a)[None, :]
        at = row[:, None] * h + channel[None, :]
        gate_grad = tl.load(of_gate + at, mask=inside, other=0.0)
        small = tl.load(bottleneck + row[:, None] * a + unit[None, :], mask=mask, other=0.0)
        of_small = tl.dot(gate_grad, second, input_precision="ieee")
        of_small = tl.where(small > 0, of_small, 0.0)
        sum_b1 += of_small
        of_small = of_small.to(y.dtype.element_ty)
        sum_b2 += gate_grad.to(tl.float32)
        sum_second += tl.dot(tl.trans(gate_grad), small, input_precision="ieee")
        value = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
        below = _normal_cdf(value)
        inner = (value * below).to(y.dtype.element_ty)
        sum_first += tl.dot(tl.trans(of_small), inner, input_precision="ieee")
        total = tl.load(of_inner + at, mask=inside, other=0.0).to(tl.float32)
        total += tl.dot(of_small, first, input_precision="ieee")
        total *= below + value * DENSITY * tl.exp(-0.5 * value * value)
        tl.store(of_y + at, total.to(of_y.dtype.element_ty), mask=inside)
    at_first = program * a * h + unit[:, None] * h + channel[None, :]
    tl.store(of_w1 + at_first, sum_first, mask=(unit < a)[:, None] & (channel < h)[None, :])
    at_second = program * a * h + channel[:, None] * a + unit[None, :]
    tl.store(of_w2 + at_second, sum_second, mask=(channel < h)[:, None] & (unit < a)[None, :])
    tl.store(of_b1 + program * a + unit, tl.sum(sum_b1, axis=0), mask=unit < a)
    tl.store(of_b2 + program * h + channel, tl.sum(sum_b2, axis=0), mask=channel < h)
