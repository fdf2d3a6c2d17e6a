"""A block's work on nodes as Triton kernels; models/layout/fused_ops.py launches them.

Each reads what it is given once and writes what it gives once. Nothing is added up by atomics, so
the same input gives the same bytes. Sums, norms and softmaxes are float32 whatever is stored.

Shapes: n nodes, c configs, h channels; H is h and C is c, rounded up to a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def norm(x, gain, shift, out, mean, rstd, n_rows, h, eps, R: tl.constexpr, H: tl.constexpr):
    """out = layer_norm(x) over channels, for R of (n_rows, h) rows."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    channel = tl.arange(0, H)
    inside = (row < n_rows)[:, None] & (channel < h)[None, :]
    at = row.to(tl.int64)[:, None] * h + channel[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    centre = tl.sum(value, axis=1) / h
    apart = tl.where(inside, value - centre[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(apart * apart, axis=1) / h + eps)
    by = tl.load(gain + channel, mask=channel < h, other=0.0)[None, :]
    plus = tl.load(shift + channel, mask=channel < h, other=0.0)[None, :]
    result = apart * inverse[:, None] * by + plus
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
    tl.store(mean + row, centre, mask=row < n_rows)
    tl.store(rstd + row, inverse, mask=row < n_rows)


@triton.jit
def _of_normed(grad, value, centre, inverse, by, inside, h):
    """Return the gradient of x from that of layer_norm(x), and x as the norm scales it."""
    unit = tl.where(inside, (value - centre[:, None]) * inverse[:, None], 0.0)
    of_unit = grad * by
    along = tl.sum(of_unit * unit, axis=1) / h
    level = tl.sum(of_unit, axis=1) / h
    return (of_unit - level[:, None] - unit * along[:, None]) * inverse[:, None], unit


@triton.jit
def norm_backward(
    grad, x, mean, rstd, gain, of_x, of_gain, of_shift, n_rows, h, per_program,
    R: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """From the gradient of layer_norm(x); those of gain and shift are (programs, h) parts."""
    program = tl.program_id(0)
    channel = tl.arange(0, H)
    by = tl.load(gain + channel, mask=channel < h, other=0.0)[None, :]
    sum_gain, sum_shift = tl.zeros([H], tl.float32), tl.zeros([H], tl.float32)
    for start in range(0, per_program, R):
        place = start + tl.arange(0, R)
        row = program * per_program + place
        valid = (place < per_program) & (row < n_rows)
        inside = valid[:, None] & (channel < h)[None, :]
        at = row.to(tl.int64)[:, None] * h + channel[None, :]
        given = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + row, mask=valid, other=0.0)
        inverse = tl.load(rstd + row, mask=valid, other=0.0)
        result, unit = _of_normed(given, value, centre, inverse, by, inside, h)
        tl.store(of_x + at, result.to(of_x.dtype.element_ty), mask=inside)
        sum_gain += tl.sum(given * unit, axis=0)
        sum_shift += tl.sum(given, axis=0)
    at = program * h + channel
    tl.store(of_gain + at, sum_gain, mask=channel < h)
    tl.store(of_shift + at, sum_shift, mask=channel < h)


@triton.jit
def sparse_rows(
    starts, columns, values, x, added, out, n_in, n_out, c, h, parts_in, parts_out, added_stride,
    B: tl.constexpr,
):  # fmt: skip
    """One row of a sparse product, B of its c · h values: out = added + sum of value · x."""
    row = tl.program_id(0)
    place = tl.program_id(1) * B + tl.arange(0, B)
    inside = place < c * h
    config, channel = place // h, place % h
    total = tl.load(added + row * added_stride + channel, mask=inside, other=0.0).to(tl.float32)
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
def _messages(gated, at, h, inside):
    inner = tl.load(gated + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gated + at + h, mask=inside, other=0.0).to(tl.float32)
    opened = 1 / (1 + tl.exp(-gate))
    return inner, opened


@triton.jit
def _softmax(logits, inside):
    logits = tl.where(inside, logits, float("-inf"))
    highest = tl.max(logits, axis=0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    power = tl.exp(logits - highest[None, :])
    total = tl.sum(power, axis=0)
    return power / tl.where(total == 0, 1.0, total)[None, :]


@triton.jit
def attend(gated, sharpness, out, c, h, C: tl.constexpr, B: tl.constexpr):
    """All configs of B channels of one node: [u, u · w]."""
    node = tl.program_id(0).to(tl.int64)
    config = tl.arange(0, C)[:, None]
    channel = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    inside = (config < c) & (channel < h)
    at = (node * c + config) * 2 * h + channel
    inner, opened = _messages(gated, at, h, inside)
    message = inner * opened
    weight = _softmax(message * tl.load(sharpness), inside) * c
    tl.store(out + at, message.to(out.dtype.element_ty), mask=inside)
    tl.store(out + at + h, (message * weight).to(out.dtype.element_ty), mask=inside)


@triton.jit
def attend_backward(
    grad, gated, sharpness, of_gated, slopes, c, h, C: tl.constexpr, B: tl.constexpr
):
    """From the gradient of [u, u · w]; that of sharpness is (nodes, blocks of channels) parts."""
    node = tl.program_id(0).to(tl.int64)
    config = tl.arange(0, C)[:, None]
    channel = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    inside = (config < c) & (channel < h)
    at = (node * c + config) * 2 * h + channel
    inner, opened = _messages(gated, at, h, inside)
    message, sharp = inner * opened, tl.load(sharpness)
    share = _softmax(message * sharp, inside)
    of_message = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    of_weighed = tl.load(grad + at + h, mask=inside, other=0.0).to(tl.float32) * c
    of_share = of_weighed * message
    of_logits = share * (of_share - tl.sum(share * of_share, axis=0)[None, :])
    of_message += of_weighed * share + of_logits * sharp
    slope = tl.sum(tl.sum(of_logits * message, axis=1), axis=0)
    tl.store(slopes + node * tl.num_programs(1) + tl.program_id(1), slope)
    of_inner = of_message * opened
    of_gate = of_inner * inner * (1 - opened)
    tl.store(of_gated + at, of_inner.to(of_gated.dtype.element_ty), mask=inside)
    tl.store(of_gated + at + h, of_gate.to(of_gated.dtype.element_ty), mask=inside)


@triton.jit
def weigh(messages, sharpness, normaliser, out, size, per_node, h, B: tl.constexpr):
    """out = u · exp(u · sharpness - normaliser of the node and channel)."""
    place = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    inside = place < size
    message = tl.load(messages + place, mask=inside, other=0.0).to(tl.float32)
    at = place // per_node * h + place % h
    level = tl.load(normaliser + at, mask=inside, other=0.0)
    result = message * tl.exp(message * tl.load(sharpness) - level)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def log_sum_exp(messages, sharpness, out, c, h, C: tl.constexpr, B: tl.constexpr):
    """Over all configs, C at a time, of B channels of one node."""
    node = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * B + tl.arange(0, B)
    sharp = tl.load(sharpness)
    highest, total = tl.full([B], float("-inf"), tl.float32), tl.zeros([B], tl.float32)
    for start in range(0, c, C):
        config = start + tl.arange(0, C)[:, None]
        inside = (config < c) & (channel < h)[None, :]
        at = (node * c + config) * h + channel[None, :]
        value = tl.load(messages + at, mask=inside, other=0.0).to(tl.float32) * sharp
        value = tl.where(config < c, value, float("-inf"))
        higher = tl.maximum(highest, tl.max(value, axis=0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(value - higher[None, :]), axis=0)
        highest = higher
    tl.store(out + node * h + channel, highest + tl.log(total), mask=channel < h)


@triton.jit
def pool(
    x, gain, shift, shares, sums, largest, place, mean, rstd, n, c, h, n_shares, per_program, eps,
    P: tl.constexpr, R: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """One config's layer_norm(x) of some nodes: sums by shares, the largest and where it is."""
    config, program = tl.program_id(0), tl.program_id(1)
    channel, share = tl.arange(0, H), tl.arange(0, P)
    by = tl.load(gain + channel, mask=channel < h, other=0.0)[None, :]
    plus = tl.load(shift + channel, mask=channel < h, other=0.0)[None, :]
    total = tl.zeros([P, H], tl.float32)
    top, where = tl.full([H], float("-inf"), tl.float32), tl.zeros([H], tl.int64)
    for start in range(0, per_program, R):
        step = start + tl.arange(0, R)
        node = program * per_program + step
        valid = (step < per_program) & (node < n)
        inside = valid[:, None] & (channel < h)[None, :]
        row = node.to(tl.int64) * c + config
        value = tl.load(x + row[:, None] * h + channel[None, :], mask=inside, other=0.0)
        value = value.to(tl.float32)
        centre = tl.sum(value, axis=1) / h
        apart = tl.where(inside, value - centre[:, None], 0.0)
        inverse = 1 / tl.sqrt(tl.sum(apart * apart, axis=1) / h + eps)
        normed = apart * inverse[:, None] * by + plus
        tl.store(mean + row, centre, mask=valid)
        tl.store(rstd + row, inverse, mask=valid)
        wanted = (share < n_shares)[:, None] & valid[None, :]
        weight = tl.load(shares + share[:, None] * n + node[None, :], mask=wanted, other=0.0)
        total += tl.sum(weight[:, :, None] * normed[None, :, :], axis=1)
        shown = tl.where(valid[:, None], normed, float("-inf"))
        high = tl.max(shown, axis=0)
        first = tl.min(tl.where(shown == high[None, :], node[:, None], n), axis=0)
        where = tl.where(high > top, first.to(tl.int64), where)
        top = tl.maximum(high, top)
    at = ((program * n_shares + share[:, None]) * c + config) * h + channel[None, :]
    tl.store(sums + at, total, mask=(share < n_shares)[:, None] & (channel < h)[None, :])
    at = (program * c + config) * h + channel
    tl.store(largest + at, top, mask=channel < h)
    tl.store(place + at, where, mask=channel < h)


@triton.jit
def pool_backward(
    of_sums, of_largest, x, gain, shares, place, mean, rstd, of_x, of_gain, of_shift,
    n, c, h, n_shares, per_program, P: tl.constexpr, R: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """From the gradients of what `pool` gives; those of gain and shift are parts by program."""
    config, program = tl.program_id(0), tl.program_id(1)
    channel, share = tl.arange(0, H), tl.arange(0, P)
    some = channel < h
    by = tl.load(gain + channel, mask=some, other=0.0)[None, :]
    shared = (share[:, None] * c + config) * h + channel[None, :]
    given = tl.load(of_sums + shared, mask=(share < n_shares)[:, None] & some[None, :], other=0.0)
    own = config * h + channel
    peak = tl.load(of_largest + own, mask=some, other=0.0)
    where = tl.load(place + own, mask=some, other=0)
    sum_gain, sum_shift = tl.zeros([H], tl.float32), tl.zeros([H], tl.float32)
    for start in range(0, per_program, R):
        step = start + tl.arange(0, R)
        node = program * per_program + step
        valid = (step < per_program) & (node < n)
        inside = valid[:, None] & some[None, :]
        row = node.to(tl.int64) * c + config
        at = row[:, None] * h + channel[None, :]
        wanted = (share < n_shares)[:, None] & valid[None, :]
        weight = tl.load(shares + share[:, None] * n + node[None, :], mask=wanted, other=0.0)
        grad = tl.sum(weight[:, :, None] * given[:, None, :], axis=0)
        grad += tl.where(node[:, None] == where[None, :], peak[None, :], 0.0)
        grad = tl.where(inside, grad, 0.0)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + row, mask=valid, other=0.0)
        inverse = tl.load(rstd + row, mask=valid, other=0.0)
        result, unit = _of_normed(grad, value, centre, inverse, by, inside, h)
        tl.store(of_x + at, result.to(of_x.dtype.element_ty), mask=inside)
        sum_gain += tl.sum(grad * unit, axis=0)
        sum_shift += tl.sum(grad, axis=0)
    part = (program * c + config) * h + channel
    tl.store(of_gain + part, sum_gain, mask=some)
    tl.store(of_shift + part, sum_shift, mask=some)
