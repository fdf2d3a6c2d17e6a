"""Convolutional networks: each function returns a network, its weights and an example input."""

from typing import Any

from data.collect.programs.layers import (
    Draw,
    Network,
    Weights,
    average_pool,
    batch_norm,
    channel_affine,
    convolve,
    dense,
    max_pool,
    pairs,
    upsample,
)

Parts = tuple[Network, Weights, Any]


def plain(batch: int) -> Parts:
    """Six 3 x 3 convolutions with batch normalisation, pooled twice, and a dense head."""
    import jax

    draw = Draw(1)
    widths = pairs((8, 16, 16, 32, 32, 64, 64))
    weights = [[draw.weight(3, 3, i, o), draw.affine(o)] for i, o in widths]
    weights.append(draw.dense(4 * 4 * 64, 128))

    def network(weights: Weights, x: Any) -> Any:
        *blocks, head = weights
        for number, (kernel, affine) in enumerate(blocks):
            x = jax.nn.relu(batch_norm(affine, convolve(kernel, x)))
            x = max_pool(x) if number % 2 else x
        return dense(head, x.reshape(x.shape[0], -1))

    return network, weights, draw.array(batch, 32, 32, 8)


def residual(batch: int, depth: int = 6) -> Parts:
    """Bottleneck blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions around identities."""
    import jax

    draw = Draw(2)
    width, inner = 64, 16
    weights: Weights = [draw.weight(3, 3, 3, width)]
    for _ in range(depth):
        kernels = ((1, 1, width, inner), (3, 3, inner, inner), (1, 1, inner, width))
        weights.append([[draw.weight(*shape), draw.affine(shape[-1])] for shape in kernels])
    weights.append(draw.dense(width, 100))

    def network(weights: Weights, x: Any) -> Any:
        stem, *blocks, head = weights
        x = convolve(stem, x, stride=2)
        for block in blocks:
            y = x
            for kernel, affine in block:
                y = jax.nn.relu(channel_affine(affine, convolve(kernel, y)))
            x = x + y
        return dense(head, average_pool(x))

    return network, weights, draw.array(batch, 32, 32, 3)


def depthwise(batch: int) -> Parts:
    """Inverted bottlenecks: widen, in every other block convolve each channel alone, narrow."""
    import jax

    draw = Draw(3)
    weights: Weights = [draw.weight(3, 3, 3, 48)]
    for number, (n_in, n_out) in enumerate(pairs((48, 64, 64, 64, 96, 96))):
        wide = 3 * n_in
        kernels = [(1, 1, n_in, wide), (3, 1, 1, wide), (1, 1, wide, n_out)]
        if number % 2 == 0:
            kernels.pop(1)
        weights.append([[draw.weight(*shape), draw.affine(shape[-1])] for shape in kernels])
    weights.append(draw.dense(96, 100))

    def network(weights: Weights, x: Any) -> Any:
        stem, *blocks, head = weights
        x = convolve(stem, x, stride=4)
        for block in blocks:
            y = x
            for kernel, affine in block:
                groups = y.shape[-1] // kernel.shape[2]
                y = jax.nn.relu6(channel_affine(affine, convolve(kernel, y, groups=groups)))
            x = x + y if x.shape == y.shape else y
        return dense(head, average_pool(x))

    return network, weights, draw.array(batch, 32, 32, 3)


def unet(batch: int) -> Parts:
    """Down and up again over three scales, with the way down joined to the way up."""
    import jax
    import jax.numpy as jnp

    draw = Draw(4)
    widths = (16, 32, 64)
    down = [
        [draw.weight(3, 3, i, o), draw.weight(1, 1, o, o), draw.affine(o)]
        for i, o in pairs((4, *widths))
    ]
    up = [
        [draw.weight(2, 2, o, i), draw.weight(1, 1, 2 * i, i), draw.affine(i)]
        for i, o in reversed(pairs(widths))
    ]

    def network(weights: Weights, x: Any) -> Any:
        down, up, last = weights
        passed = []
        for first, second, affine in down:
            x = jax.nn.relu(convolve(first, x))
            x = jax.nn.relu(channel_affine(affine, convolve(second, x)))
            passed.append(x)
            x = max_pool(x)
        x = passed.pop()
        for raise_scale, merge, affine in up:
            x = jnp.concatenate([upsample(raise_scale, x), passed.pop()], axis=-1)
            x = jax.nn.relu(channel_affine(affine, convolve(merge, x)))
        return convolve(last, x)

    return network, [down, up, draw.weight(1, 1, widths[0], 2)], draw.array(batch, 16, 16, 4)


def dilated(batch: int) -> Parts:
    """Gated 1-D convolutions of growing dilation with skips, as for sound."""
    import jax

    draw = Draw(5)
    width = 64
    blocks = [
        [draw.weight(3, width, width), draw.weight(3, width, width), draw.weight(1, width, width)]
        for _ in range(6)
    ]

    def network(weights: Weights, x: Any) -> Any:
        blocks, head = weights
        total = 0.0
        for number, (value, gate, mix) in enumerate(blocks):
            dilation = 2**number
            opened = jax.nn.sigmoid(convolve(gate, x, dilation=dilation))
            y = convolve(mix, jax.numpy.tanh(convolve(value, x, dilation=dilation)) * opened)
            x, total = x + y, total + y
        return dense(head, jax.nn.relu(total))

    return network, [blocks, draw.dense(width, 64)], draw.array(batch, 96, width)


def volume(batch: int) -> Parts:
    """3-D convolutions along one axis at a time between 1 x 1 x 1 ones that mix channels."""
    import jax

    draw = Draw(6)
    width, inner = 64, 16
    windows = ((3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 1, 1))
    blocks = [
        [
            [draw.weight(1, 1, 1, width, inner), draw.affine(inner)],
            [draw.weight(*window, inner, inner), draw.affine(inner)],
            [draw.weight(1, 1, 1, inner, width), draw.affine(width)],
        ]
        for window in windows
    ]
    stem = draw.weight(2, 2, 2, 2, width)

    def network(weights: Weights, x: Any) -> Any:
        stem, blocks, head = weights
        x = convolve(stem, x, stride=2)
        for block in blocks:
            y = x
            for kernel, affine in block:
                y = jax.nn.relu(channel_affine(affine, convolve(kernel, y)))
            x = x + y
        return dense(head, average_pool(x))

    return network, [stem, blocks, draw.dense(width, 50)], draw.array(batch, 12, 12, 12, 2)


def autoencoder(batch: int) -> Parts:
    """Strided convolutions to a code, and transposed ones back to the image."""
    import jax

    draw = Draw(7)
    widths = pairs((4, 16, 32, 64))
    encoder = [[draw.weight(3, 3, i, o), draw.affine(o)] for i, o in widths]
    decoder = [[draw.weight(3, 3, o, i), draw.affine(i)] for i, o in reversed(widths)]
    code = [draw.dense(4 * 4 * 64, 64), draw.dense(64, 4 * 4 * 64)]

    def network(weights: Weights, x: Any) -> Any:
        encoder, (shrink, grow), decoder = weights
        for kernel, affine in encoder:
            x = jax.nn.leaky_relu(channel_affine(affine, convolve(kernel, x, stride=2)))
        shape = x.shape
        x = dense(grow, dense(shrink, x.reshape(shape[0], -1))).reshape(shape)
        for kernel, affine in decoder:
            x = jax.nn.leaky_relu(channel_affine(affine, upsample(kernel, x)))
        return jax.nn.sigmoid(x)

    return network, [encoder, code, decoder], draw.array(batch, 32, 32, 4)


def dense_block(batch: int) -> Parts:
    """Each layer reads all layers before it, joined along the channels."""
    import jax
    import jax.numpy as jnp

    draw = Draw(8)
    growth, start = 16, 48
    layers = []
    for number in range(6):
        n_in = start + growth * number
        layers.append(
            [draw.affine(n_in), draw.weight(1, 1, n_in, 64), draw.weight(3, 3, 64, growth)]
        )

    def network(weights: Weights, x: Any) -> Any:
        stem, layers, head = weights
        x = convolve(stem, x)
        for affine, squeeze, grow in layers:
            y = convolve(squeeze, jax.nn.relu(channel_affine(affine, x)))
            x = jnp.concatenate([x, convolve(grow, jax.nn.relu(y))], axis=-1)
        return dense(head, average_pool(x))

    head = draw.dense(start + growth * len(layers), 100)
    return network, [draw.weight(3, 3, 3, start), layers, head], draw.array(batch, 8, 8, 3)
