"""Layer norms and their pooling as Triton kernels, by the rules of triton_kernels.py."""

import triton
import triton.language as tl


@triton.jit
def _norm_of(value, by, plus, eps, inside, h):
    centre = tl.sum(value, axis=1) / h
    apart = tl.where(inside, value - centre[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(apart * apart, axis=1) / h + eps)
    return apart * inverse[:, None] * by + plus, centre, inverse


@triton.jit(do_not_specialize=["n_rows"])
def norm(
    x, gain, shift, out, mean, rstd, n_rows, eps,
    h: tl.constexpr, R: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Compute out = layer_norm(x) over channels, for R of (n_rows, h) rows."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    channel = tl.arange(0, H)
    inside = (row < n_rows)[:, None] & (channel < h)[None, :]
    at = row.to(tl.int64)[:, None] * h + channel[None, :]
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    by = tl.load(gain + channel, mask=channel < h, other=0.0)[None, :]
    plus = tl.load(shift + channel, mask=channel < h, other=0.0)[None, :]
    result, centre, inverse = _norm_of(value, by, plus, eps, inside, h)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
    tl.store(mean + row, centre, mask=row < n_rows)
    tl.store(rstd + row, inverse, mask=row < n_rows)


@triton.jit
def _norm_gradient(grad, value, centre, inverse, by, inside, h):
    unit = tl.where(inside, (value - centre[:, None]) * inverse[:, None], 0.0)
    of_unit = grad * by
    along = tl.sum(of_unit * unit, axis=1) / h
    level = tl.sum(of_unit, axis=1) / h
    return (of_unit - level[:, None] - unit * along[:, None]) * inverse[:, None], unit


@triton.jit(do_not_specialize=["n_rows", "per_program"])
def norm_backward(
    grad, x, mean, rstd, gain, of_x, of_gain, of_shift, n_rows, per_program,
    h: tl.constexpr, R: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of x from that of layer_norm(x).

    The gradients of gain and shift are (programs, h) parts.
    """
    program = tl.program_id(0)
    channel = tl.arange(0, H)
    by = tl.load(gain + channel, mask=channel < h, other=0.0)[None, :]
    sum_gain, sum_shift = tl.zeros([R, H], tl.float32), tl.zeros([R, H], tl.float32)
    for start in range(0, per_program, R):
        place = start + tl.arange(0, R)
        row = program * per_program + place
        valid = (place < per_program) & (row < n_rows)
        inside = valid[:, None] & (channel < h)[None, :]
        at = row.to(tl.int64)[:, None] * h + channel[None, :]
        of_out = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + row, mask=valid, other=0.0)
        inverse = tl.load(rstd + row, mask=valid, other=0.0)
        result, unit = _norm_gradient(of_out, value, centre, inverse, by, inside, h)
        tl.store(of_x + at, result.to(of_x.dtype.element_ty), mask=inside)
        sum_gain += of_out * unit
        sum_shift += of_out
    at = program * h + channel
    tl.store(of_gain + at, tl.sum(sum_gain, axis=0), mask=channel < h)
    tl.store(of_shift + at, tl.sum(sum_shift, axis=0), mask=channel < h)


@triton.jit(do_not_specialize=["n", "c", "per_program"])
def pool(
    x, gain, shift, shares, sums, largest, place, mean, rstd, n, c, per_program, eps,
    n_shares: tl.constexpr, h: tl.constexpr, P: tl.constexpr, R: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Pool one config's layer_norm(x) of some nodes: sums by shares, maxima and their nodes."""
    config, program = tl.program_id(0), tl.program_id(1)
    channel, share = tl.arange(0, H), tl.arange(0, P)
    by = tl.load(gain + channel, mask=channel < h, other=0.0)[None, :]
    plus = tl.load(shift + channel, mask=channel < h, other=0.0)[None, :]
    total = tl.zeros([P, R, H], tl.float32)
    top, where = tl.full([R, H], float("-inf"), tl.float32), tl.full([R, H], 0, tl.int32)
    for start in range(0, per_program, R):
        step = start + tl.arange(0, R)
        node = program * per_program + step
        valid = (step < per_program) & (node < n)
        inside = valid[:, None] & (channel < h)[None, :]
        row = node.to(tl.int64) * c + config
        value = tl.load(x + row[:, None] * h + channel[None, :], mask=inside, other=0.0)
        result, centre, inverse = _norm_of(value.to(tl.float32), by, plus, eps, inside, h)
        tl.store(mean + row, centre, mask=valid)
        tl.store(rstd + row, inverse, mask=valid)
        mask = (share < n_shares)[:, None] & valid[None, :]
        weight = tl.load(shares + share[:, None] * n + node[None, :], mask=mask, other=0.0)
        total += weight[:, :, None] * result[None, :, :]
        higher = valid[:, None] & (result > top)
        where = tl.where(higher, node[:, None], where)
        top = tl.where(higher, result, top)
    at = ((program * n_shares + share[:, None]) * c + config) * h + channel[None, :]
    mask = (share < n_shares)[:, None] & (channel < h)[None, :]
    tl.store(sums + at, tl.sum(total, axis=1), mask=mask)
    highest = tl.max(top, axis=0)
    first = tl.min(tl.where(top == highest[None, :], where, n), axis=0)
    at = (program * c + config) * h + channel
    tl.store(largest + at, highest, mask=channel < h)
    tl.store(place + at, first.to(tl.int64), mask=channel < h)


@triton.jit(do_not_specialize=["n", "c", "per_program"])
def pool_backward(
    of_sums, of_largest, x, gain, shares, place, mean, rstd, of_x, of_gain, of_shift,
    n, c, per_program,
    n_shares: tl.constexpr, h: tl.constexpr, R: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Map the gradients of the results of `pool` to that of x.

    The gradients of gain and shift are parts by program.
    """
    config, program = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, H)
    channel_mask = channel < h
    by = tl.load(gain + channel, mask=channel_mask, other=0.0)[None, :]
    slot = config * h + channel
    peak = tl.load(of_largest + slot, mask=channel_mask, other=0.0)
    where = tl.load(place + slot, mask=channel_mask, other=0)
    sum_gain, sum_shift = tl.zeros([R, H], tl.float32), tl.zeros([R, H], tl.float32)
    for start in range(0, per_program, R):
        step = start + tl.arange(0, R)
        node = program * per_program + step
        valid = (step < per_program) & (node < n)
        inside = valid[:, None] & channel_mask[None, :]
        row = node.to(tl.int64) * c + config
        at = row[:, None] * h + channel[None, :]
        grad = tl.where(node[:, None] == where[None, :], peak[None, :], 0.0)
        for share in tl.static_range(n_shares):
            weight = tl.load(shares + share * n + node, mask=valid, other=0.0)
            of_sum = tl.load(of_sums + share * c * h + slot, mask=channel_mask, other=0.0)
            grad += weight[:, None] * of_sum[None, :]
        grad = tl.where(inside, grad, 0.0)
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + row, mask=valid, other=0.0)
        inverse = tl.load(rstd + row, mask=valid, other=0.0)
        result, unit = _norm_gradient(grad, value, centre, inverse, by, inside, h)
        tl.store(of_x + at, result.to(of_x.dtype.element_ty), mask=inside)
        sum_gain += grad * unit
        sum_shift += grad
    part = (program * c + config) * h + channel
    tl.store(of_gain + part, tl.sum(sum_gain, axis=0), mask=channel_mask)
    tl.store(of_shift + part, tl.sum(sum_shift, axis=0), mask=channel_mask)
