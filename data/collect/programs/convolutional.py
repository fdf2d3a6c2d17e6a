"""Convolutional networks; see `data.collect.programs.layers` for shapes and what one returns."""

from functools import partial
from itertools import pairwise
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.nn import relu, sigmoid

from data.collect.programs.layers import (
    Draw,
    Parts,
    Weights,
    average_pool,
    batch_norm,
    convolve,
    dense,
    max_pool,
    rescale,
    upsample,
)


def plain(batch: int) -> Parts:
    """Six 3 x 3 convolutions with batch normalisation, pooled twice, and a dense head."""
    draw = Draw(1)
    weights = [draw.scaled(3, 3, i, o) for i, o in pairwise((8, 16, 16, 32, 32, 64, 64))]
    weights.append(draw.dense(4 * 4 * 64, 128))

    def network(weights: Weights, x: Any) -> Any:
        *blocks, head = weights
        for number, (kernel, affine) in enumerate(blocks):
            x = relu(batch_norm(affine, convolve(kernel, x)))
            x = max_pool(x) if number % 2 else x
        return dense(head, x.reshape(x.shape[0], -1))

    return network, weights, draw.array(batch, 32, 32, 8)


def _bottlenecks(weights: Weights, x: Any, *, stride: int = 2, bend: Any = relu) -> Any:
    stem, *blocks, head = weights
    x = convolve(stem, x, stride=stride)
    for block in blocks:
        y = x
        for kernel, affine in block:
            groups = y.shape[-1] // kernel.shape[-2]
            y = bend(rescale(affine, convolve(kernel, y, groups=groups)))
        x = x + y if x.shape == y.shape else y
    return dense(head, average_pool(x))


def residual(batch: int, depth: int = 6) -> Parts:
    """Bottleneck blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions around identities."""
    draw, width, inner = Draw(2), 64, 16
    weights: Weights = [draw.weight(3, 3, 3, width)]
    for _ in range(depth):
        kernels = ((1, 1, width, inner), (3, 3, inner, inner), (1, 1, inner, width))
        weights.append([draw.scaled(*shape) for shape in kernels])
    weights.append(draw.dense(width, 100))
    return _bottlenecks, weights, draw.array(batch, 32, 32, 3)


def depthwise(batch: int) -> Parts:
    """Inverted bottlenecks: widen, in every other block convolve each channel alone, narrow."""
    draw = Draw(3)
    weights: Weights = [draw.weight(3, 3, 3, 48)]
    for number, (n_in, n_out) in enumerate(pairwise((48, 64, 64, 64, 96, 96))):
        wide = 3 * n_in
        kernels = [(1, 1, n_in, wide), (3, 1, 1, wide), (1, 1, wide, n_out)]
        if number % 2 == 0:
            kernels.pop(1)
        weights.append([draw.scaled(*shape) for shape in kernels])
    weights.append(draw.dense(96, 100))
    network = partial(_bottlenecks, stride=4, bend=jax.nn.relu6)
    return network, weights, draw.array(batch, 32, 32, 3)


def volume(batch: int) -> Parts:
    """3-D convolutions along one axis at a time between 1 x 1 x 1 ones that mix channels."""
    draw, width, inner = Draw(6), 64, 16
    blocks = [
        [
            draw.scaled(1, 1, 1, width, inner),
            draw.scaled(*window, inner, inner),
            draw.scaled(1, 1, 1, inner, width),
        ]
        for window in ((3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 1, 1))
    ]
    weights = [draw.weight(2, 2, 2, 2, width), *blocks, draw.dense(width, 50)]
    return _bottlenecks, weights, draw.array(batch, 12, 12, 12, 2)


def unet(batch: int) -> Parts:
    """Down and up again over three scales, with the way down joined to the way up."""
    draw = Draw(4)
    widths = (16, 32, 64)
    down = [[draw.weight(3, 3, i, o), *draw.scaled(1, 1, o, o)] for i, o in pairwise((4, *widths))]
    up = [
        [draw.weight(2, 2, o, i), *draw.scaled(1, 1, 2 * i, i)]
        for i, o in reversed(list(pairwise(widths)))
    ]

    def network(weights: Weights, x: Any) -> Any:
        down, up, last = weights
        passed = []
        for first, second, affine in down:
            x = relu(convolve(first, x))
            x = relu(rescale(affine, convolve(second, x)))
            passed.append(x)
            x = max_pool(x)
        x = passed.pop()
        for raise_scale, merge, affine in up:
            x = jnp.concatenate([upsample(raise_scale, x), passed.pop()], axis=-1)
            x = relu(rescale(affine, convolve(merge, x)))
        return convolve(last, x)

    return network, [down, up, draw.weight(1, 1, widths[0], 2)], draw.array(batch, 16, 16, 4)


def dilated(batch: int) -> Parts:
    """Gated 1-D convolutions of growing dilation with skips, as for sound."""
    draw, width = Draw(5), 64
    blocks = [[draw.weight(window, width, width) for window in (3, 3, 1)] for _ in range(6)]

    def network(weights: Weights, x: Any) -> Any:
        blocks, head = weights
        total = 0.0
        for number, (value, gate, mix) in enumerate(blocks):
            dilation = 2**number
            opened = sigmoid(convolve(gate, x, dilation=dilation))
            y = convolve(mix, jnp.tanh(convolve(value, x, dilation=dilation)) * opened)
            x, total = x + y, total + y
        return dense(head, relu(total))

    return network, [blocks, draw.dense(width, 64)], draw.array(batch, 96, width)


def autoencoder(batch: int) -> Parts:
    """Strided convolutions to a code, and transposed ones back to the image."""
    draw = Draw(7)
    widths = list(pairwise((4, 16, 32, 64)))
    encoder = [draw.scaled(3, 3, i, o) for i, o in widths]
    decoder = [draw.scaled(3, 3, o, i) for i, o in reversed(widths)]
    code = [draw.dense(4 * 4 * 64, 64), draw.dense(64, 4 * 4 * 64)]

    def network(weights: Weights, x: Any) -> Any:
        encoder, (shrink, grow), decoder = weights
        for kernel, affine in encoder:
            x = jax.nn.leaky_relu(rescale(affine, convolve(kernel, x, stride=2)))
        shape = x.shape
        x = dense(grow, dense(shrink, x.reshape(shape[0], -1))).reshape(shape)
        for kernel, affine in decoder:
            x = jax.nn.leaky_relu(rescale(affine, upsample(kernel, x)))
        return sigmoid(x)

    return network, [encoder, code, decoder], draw.array(batch, 32, 32, 4)


def dense_block(batch: int) -> Parts:
    """Each layer reads all layers before it, joined along the channels."""
    draw, growth, start = Draw(8), 16, 48
    layers = [
        [draw.affine(n_in), draw.weight(1, 1, n_in, 64), draw.weight(3, 3, 64, growth)]
        for n_in in range(start, start + 6 * growth, growth)
    ]

    def network(weights: Weights, x: Any) -> Any:
        stem, layers, head = weights
        x = convolve(stem, x)
        for affine, squeeze, grow in layers:
            y = convolve(squeeze, relu(rescale(affine, x)))
            x = jnp.concatenate([x, convolve(grow, relu(y))], axis=-1)
        return dense(head, average_pool(x))

    head = draw.dense(start + growth * len(layers), 100)
    return network, [draw.weight(3, 3, 3, start), layers, head], draw.array(batch, 8, 8, 3)


def _scaled_convolution(weights: Weights, x: Any, *, stride: int = 1, groups: int = 1) -> Any:
    kernel, affine = weights
    return rescale(affine, convolve(kernel, x, stride=stride, groups=groups))


def _instance_norm(weights: Weights, x: Any) -> Any:
    centred = x - x.mean((1, 2), keepdims=True)
    variance = (centred * centred).mean((1, 2), keepdims=True)
    return rescale(weights, centred * lax.rsqrt(variance + 1e-5))


def inception(batch: int) -> Parts:
    """Blocks of parallel branches with windows of different shapes, joined along the channels."""
    draw, width, inner = Draw(31), 48, 12
    branches = (((1, 1),), ((1, 1), (3, 3)), ((1, 1), (1, 5), (5, 1)), ((1, 1),))
    blocks = [
        [
            [draw.scaled(*window, inner if place else width, inner) for place, window in windows]
            for windows in map(enumerate, branches)
        ]
        for _ in range(3)
    ]

    def run_branch(weights: Weights, x: Any) -> Any:
        for layer in weights:
            x = relu(_scaled_convolution(layer, x))
        return x

    def network(weights: Weights, x: Any) -> Any:
        stem, blocks, head = weights
        x = convolve(stem, x)
        for branches in blocks:
            smooth = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9
            starts = zip((x, x, x, smooth), branches, strict=True)
            x = jnp.concatenate([run_branch(branch, y) for y, branch in starts], axis=-1)
        return dense(head, average_pool(x))

    weights = [draw.weight(3, 3, 3, width), blocks, draw.dense(width, 100)]
    return network, weights, draw.array(batch, 16, 16, 3)


def shuffle(batch: int) -> Parts:
    """Convolutions within groups of channels, which are shuffled between them."""
    draw, width, inner, groups = Draw(32), 96, 48, 3
    blocks = [
        [
            draw.scaled(1, 1, width // groups, inner),
            draw.scaled(3, 3, inner // groups, inner),
            draw.scaled(1, 1, inner // groups, width),
        ]
        for _ in range(4)
    ]

    def mix(x: Any) -> Any:
        b, h, w, c = x.shape
        return x.reshape(b, h, w, groups, c // groups).swapaxes(3, 4).reshape(x.shape)

    def network(weights: Weights, x: Any) -> Any:
        stem, blocks, head = weights
        x = convolve(stem, x, stride=2)
        for squeeze, window, widen in blocks:
            y = mix(relu(_scaled_convolution(squeeze, x, groups=groups)))
            y = mix(_scaled_convolution(window, y, groups=groups))
            x = relu(x + _scaled_convolution(widen, y, groups=groups))
        return dense(head, average_pool(x))

    weights = [draw.weight(3, 3, 3, width), blocks, draw.dense(width, 100)]
    return network, weights, draw.array(batch, 16, 16, 3)


def pyramid(batch: int) -> Parts:
    """Three scales, each summed with the next coarser one, and two heads that read them all."""
    draw, width, n_anchors = Draw(33), 32, 3
    widths = (3, 16, 32, 64, 96)
    stages = [[draw.scaled(3, 3, i, o), draw.scaled(3, 3, o, o)] for i, o in pairwise(widths)]
    lateral = [draw.weight(1, 1, i, width) for i in widths[2:]]
    heads = [
        [draw.scaled(3, 3, width, width), draw.weight(1, 1, width, n_anchors * values)]
        for values in (8, 4)  # classes, and the corners of a box
    ]

    def network(weights: Weights, x: Any) -> Any:
        stages, lateral, heads = weights
        scales = []
        for down, same in stages:
            x = relu(_scaled_convolution(down, x, stride=2))
            x = x + relu(_scaled_convolution(same, x))
            scales.append(x)
        levels = [convolve(kernel, x) for kernel, x in zip(lateral, scales[1:], strict=True)]
        for coarse in (2, 1):
            levels[coarse - 1] += levels[coarse].repeat(2, axis=1).repeat(2, axis=2)
        found = []
        for first, last in heads:
            read = [convolve(last, relu(_scaled_convolution(first, x))) for x in levels]
            anchors = [y.reshape(batch, -1, last.shape[-1] // n_anchors) for y in read]
            found.append(jnp.concatenate(anchors, axis=1))
        return jnp.concatenate(found, axis=-1)  # (b, anchors of all scales, 12)

    return network, [stages, lateral, heads], draw.array(batch, 48, 48, 3)


def squeeze_excite(batch: int) -> Parts:
    """Residual blocks gated by dense layers over their averages along rows and along columns."""
    draw, width, inner, size = Draw(34), 48, 16, 12
    blocks = [
        [
            *(draw.scaled(3, 3, width, width), draw.dense(width, inner)),
            *(draw.dense(inner, width), draw.dense(inner, width)),
        ]
        for _ in range(4)
    ]

    def network(weights: Weights, x: Any) -> Any:
        stem, blocks, head = weights
        x = convolve(stem, x)
        for layer, squeeze, excite_rows, excite_columns in blocks:
            y = _scaled_convolution(layer, x)
            both = jnp.concatenate([y.mean(2), y.mean(1)], axis=1)  # (b, h + w, c)
            rows, columns = jnp.split(relu(dense(squeeze, both)), 2, axis=1)
            gate = sigmoid(dense(excite_rows, rows))[:, :, None]
            x = relu(x + y * gate * sigmoid(dense(excite_columns, columns))[:, None])
        return dense(head, x.reshape(batch, -1))

    weights = [draw.weight(3, 3, 3, width), blocks, draw.dense(size * size * width, 32)]
    return network, weights, draw.array(batch, size, size, 3)


def style(batch: int) -> Parts:
    """An image is redrawn with instance normalisation; Gram matrices compare both."""
    draw, width = Draw(35), 24
    down = [draw.scaled(3, 3, i, o) for i, o in pairwise((3, 16, width))]
    blocks = [[draw.scaled(3, 3, width, width) for _ in range(2)] for _ in range(2)]
    up = [draw.scaled(3, 3, i, o) for i, o in pairwise((width, 16, 3))]
    judge = [draw.weight(1, 1, i, o) for i, o in pairwise((3, 12, 16, 24))]

    def redraw(weights: Weights, x: Any) -> Any:
        down, blocks, up = weights
        for kernel, affine in down:
            x = relu(_instance_norm(affine, convolve(kernel, x, stride=2)))
        for (first, one), (second, two) in blocks:
            y = relu(_instance_norm(one, convolve(first, x)))
            x = x + _instance_norm(two, convolve(second, y))
        for kernel, affine in up:
            x = jnp.tanh(_instance_norm(affine, upsample(kernel, x)))
        return x

    def network(weights: Weights, x: Any) -> Any:
        *painter, judge = weights
        grams = []
        x = jnp.concatenate([x, redraw(painter, x)])
        for kernel in judge:
            x = relu(convolve(kernel, x))
            spots = x.reshape(2 * batch, -1, x.shape[-1])
            gram = jnp.einsum("bsc,bsd->bcd", spots, spots) / spots.shape[1]
            grams.append((gram[:batch] - gram[batch:]).reshape(batch, -1))
        return jnp.concatenate(grams, axis=-1)

    return network, [down, blocks, up, judge], draw.array(batch, 24, 24, 3)


def capsule(batch: int) -> Parts:
    """Vectors instead of channels; layers route them by agreement, three times each."""
    draw = Draw(36)
    kernels = [draw.scaled(3, 3, i, o) for i, o in pairwise((3, 32, 48))]
    votes = [draw.weight(3 * 3 * 6, 8, 16, 12), draw.weight(16, 12, 10, 16)]

    def squash(x: Any) -> Any:
        square = (x * x).sum(-1, keepdims=True)
        return x * lax.rsqrt(square + 1e-6) * square / (1 + square)

    def route(weight: Any, x: Any) -> Any:
        vote = jnp.einsum("bid,idje->bije", x, weight)
        agreed = jnp.zeros(vote.shape[:3], vote.dtype)
        for _ in range(3):
            share = jax.nn.softmax(agreed, axis=-1)
            capsules = squash(jnp.einsum("bij,bije->bje", share, vote))
            agreed = agreed + jnp.einsum("bije,bje->bij", vote, capsules)
        return capsules

    def network(weights: Weights, x: Any) -> Any:
        kernels, votes = weights
        for layer in kernels:
            x = relu(_scaled_convolution(layer, x, stride=2))
        x = squash(x.reshape(batch, -1, 8))
        for weight in votes:
            x = route(weight, x)
        return x

    return network, [kernels, votes], draw.array(batch, 12, 12, 3)
