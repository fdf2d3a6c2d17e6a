"""Convolutional networks. See `autotune.programs.layers` for shapes and arguments."""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.nn import relu, sigmoid

from autotune.programs.layers import (
    Draw,
    average_pool,
    batch_norm,
    conv,
    convolve,
    dense,
    instance_norm,
    max_pool,
    rescale,
    scaled_conv,
    upsample,
)

# Channels, window and groups.
Layer = tuple[int, tuple[int, ...], int]


def plain(w: Draw, inputs: Draw, batch: int) -> Any:
    """Six 3 x 3 convolutions with batch normalisation, pooled twice, and a dense head."""
    x = inputs.array(batch, 32, 32, 8)
    for number, width in enumerate((16, 16, 32, 32, 64, 64)):
        x = relu(batch_norm(w, conv(w, x, width)))
        x = max_pool(x) if number % 2 else x
    return dense(w, x.reshape(x.shape[0], -1), 128)


def _bottleneck(w: Draw, x: Any, layers: list[Layer], *, bend: Any = relu) -> Any:
    y = x
    for width, window, groups in layers:
        y = bend(scaled_conv(w, y, width, *window, groups=groups))
    return x + y if x.shape == y.shape else y


def residual(w: Draw, inputs: Draw, batch: int, depth: int = 6) -> Any:
    """Residual blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions."""
    x = conv(w, inputs.array(batch, 32, 32, 3), 64, stride=2)
    for _ in range(depth):
        x = _bottleneck(w, x, [(16, (1, 1), 1), (16, (3, 3), 1), (64, (1, 1), 1)])
    return dense(w, average_pool(x), 100)


def depthwise(w: Draw, inputs: Draw, batch: int) -> Any:
    """Inverted bottlenecks. Every other block has a depthwise convolution."""
    x = conv(w, inputs.array(batch, 32, 32, 3), 48, stride=4)
    for number, width in enumerate((64, 64, 64, 96, 96)):
        wide = 3 * x.shape[-1]
        alone: list[Layer] = [(wide, (3, 1), wide)] if number % 2 else []
        layers = [(wide, (1, 1), 1), *alone, (width, (1, 1), 1)]
        x = _bottleneck(w, x, layers, bend=jax.nn.relu6)
    return dense(w, average_pool(x), 100)


def volume(w: Draw, inputs: Draw, batch: int) -> Any:
    """3-D convolutions along one axis at a time, between 1 x 1 x 1 convolutions."""
    x = conv(w, inputs.array(batch, 12, 12, 12, 2), 64, 2, 2, 2, stride=2)
    for window in ((3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 1, 1)):
        x = _bottleneck(w, x, [(16, (1, 1, 1), 1), (16, window, 1), (64, (1, 1, 1), 1)])
    return dense(w, average_pool(x), 50)


def unet(w: Draw, inputs: Draw, batch: int) -> Any:
    """A U-Net with three scales and skip connections."""
    x = inputs.array(batch, 16, 16, 4)
    skips = []
    for width in (16, 32, 64):
        x = relu(conv(w, x, width))
        x = relu(scaled_conv(w, x, width, 1, 1))
        skips.append(x)
        x = max_pool(x)
    x = skips.pop()
    for width in (32, 16):
        x = jnp.concatenate([upsample(w, x, width, window=2), skips.pop()], axis=-1)
        x = relu(scaled_conv(w, x, width, 1, 1))
    return conv(w, x, 2, 1, 1)


def dilated(w: Draw, inputs: Draw, batch: int) -> Any:
    """Gated 1-D convolutions with growing dilation and skips, as in WaveNet."""
    width, total = 64, 0.0
    x = inputs.array(batch, 96, width)
    for number in range(6):
        value, gate = w.weight(3, width, width), w.weight(3, width, width)
        opening = sigmoid(convolve(gate, x, dilation=2**number))
        y = conv(w, jnp.tanh(convolve(value, x, dilation=2**number)) * opening, width, 1)
        x, total = x + y, total + y
    return dense(w, relu(total), width)


def autoencoder(w: Draw, inputs: Draw, batch: int) -> Any:
    """Strided convolutions to a code, and transposed convolutions back to the image."""
    x = inputs.array(batch, 32, 32, 4)
    for width in (16, 32, 64):
        x = jax.nn.leaky_relu(scaled_conv(w, x, width, stride=2))
    shape = x.shape
    x = dense(w, dense(w, x.reshape(shape[0], -1), 64), 4 * 4 * 64).reshape(shape)
    for width in (32, 16, 4):
        x = jax.nn.leaky_relu(rescale(w, upsample(w, x, width)))
    return sigmoid(x)


def dense_block(w: Draw, inputs: Draw, batch: int) -> Any:
    """Each layer reads the concatenated channels of all earlier layers, as in DenseNet."""
    x = conv(w, inputs.array(batch, 8, 8, 3), 48)
    for _ in range(6):
        y = conv(w, relu(rescale(w, x)), 64, 1, 1)
        x = jnp.concatenate([x, conv(w, relu(y), 16)], axis=-1)
    return dense(w, average_pool(x), 100)


def inception(w: Draw, inputs: Draw, batch: int) -> Any:
    """Blocks of parallel branches with different windows. Their channels are concatenated."""
    branches = (((1, 1),), ((1, 1), (3, 3)), ((1, 1), (1, 5), (5, 1)), ((1, 1),))

    def run_branch(x: Any, windows: tuple[tuple[int, ...], ...]) -> Any:
        for window in windows:
            x = relu(scaled_conv(w, x, 12, *window))
        return x

    x = conv(w, inputs.array(batch, 16, 16, 3), 48)
    for _ in range(3):
        smooth = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9
        starts = zip((x, x, x, smooth), branches, strict=True)
        x = jnp.concatenate([run_branch(y, windows) for y, windows in starts], axis=-1)
    return dense(w, average_pool(x), 100)


def shuffle(w: Draw, inputs: Draw, batch: int) -> Any:
    """Convolutions in groups of channels. Channels are shuffled between convolutions."""
    groups = 3

    def mix(x: Any) -> Any:
        b, h, width, c = x.shape
        return x.reshape(b, h, width, groups, c // groups).swapaxes(3, 4).reshape(x.shape)

    x = conv(w, inputs.array(batch, 16, 16, 3), 96, stride=2)
    for _ in range(4):
        y = mix(relu(scaled_conv(w, x, 48, 1, 1, groups=groups)))
        y = mix(scaled_conv(w, y, 48, groups=groups))
        x = relu(x + scaled_conv(w, y, 96, 1, 1, groups=groups))
    return dense(w, average_pool(x), 100)


def pyramid(w: Draw, inputs: Draw, batch: int) -> Any:
    """A feature pyramid of three scales, each added to the next finer one, and two heads."""
    x, width, n_anchors = inputs.array(batch, 48, 48, 3), 32, 3
    scales = []
    for wide in (16, 32, 64, 96):
        x = relu(scaled_conv(w, x, wide, stride=2))
        x = x + relu(scaled_conv(w, x, wide))
        scales.append(x)
    levels = [conv(w, x, width, 1, 1) for x in scales[1:]]
    for coarse in (2, 1):
        levels[coarse - 1] += levels[coarse].repeat(2, axis=1).repeat(2, axis=2)
    heads = []
    for n_values in (8, 4):  # classes, and the corners of a box
        first, (scale, shift) = w.weight(3, 3, width, width), w.affine(width)
        last = w.weight(1, 1, width, n_anchors * n_values)
        read = [convolve(last, relu(convolve(first, x) * scale + shift)) for x in levels]
        heads.append(jnp.concatenate([y.reshape(batch, -1, n_values) for y in read], axis=1))
    return jnp.concatenate(heads, axis=-1)  # (b, anchors of all scales, 12)


def squeeze_excite(w: Draw, inputs: Draw, batch: int) -> Any:
    """Residual blocks with gates from dense layers over row means and column means."""
    width = 48
    x = conv(w, inputs.array(batch, 12, 12, 3), width)
    for _ in range(4):
        y = scaled_conv(w, x, width)
        means = jnp.concatenate([y.mean(2), y.mean(1)], axis=1)  # (b, h + w, c)
        rows, columns = jnp.split(relu(dense(w, means, 16)), 2, axis=1)
        gate = sigmoid(dense(w, rows, width))[:, :, None]
        x = relu(x + y * gate * sigmoid(dense(w, columns, width))[:, None])
    return dense(w, x.reshape(batch, -1), 32)


def style(w: Draw, inputs: Draw, batch: int) -> Any:
    """A style transfer network, and the Gram matrices that compare its image with the input."""
    width = 24
    image = x = inputs.array(batch, 24, 24, 3)
    for wide in (16, width):
        x = relu(instance_norm(w, conv(w, x, wide, stride=2)))
    for _ in range(2):
        y = relu(instance_norm(w, conv(w, x, width)))
        x = x + instance_norm(w, conv(w, y, width))
    for wide in (16, 3):
        x = jnp.tanh(instance_norm(w, upsample(w, x, wide)))
    grams = []
    x = jnp.concatenate([image, x])
    for wide in (12, 16, 24):
        x = relu(conv(w, x, wide, 1, 1))
        spots = x.reshape(2 * batch, -1, wide)
        gram = jnp.einsum("bsc,bsd->bcd", spots, spots) / spots.shape[1]
        grams.append((gram[:batch] - gram[batch:]).reshape(batch, -1))
    return jnp.concatenate(grams, axis=-1)


def capsule(w: Draw, inputs: Draw, batch: int) -> Any:
    """Capsules: vectors instead of channels. Layers route them by agreement in three steps."""

    def squash(x: Any) -> Any:
        square = (x * x).sum(-1, keepdims=True)
        return x * lax.rsqrt(square + 1e-6) * square / (1 + square)

    def route(weight: Any, x: Any) -> Any:
        vote = jnp.einsum("bid,idje->bije", x, weight)
        agreement = jnp.zeros(vote.shape[:3], vote.dtype)
        for _ in range(3):
            share = jax.nn.softmax(agreement, axis=-1)
            capsules = squash(jnp.einsum("bij,bije->bje", share, vote))
            agreement = agreement + jnp.einsum("bije,bje->bij", vote, capsules)
        return capsules

    x = inputs.array(batch, 12, 12, 3)
    for width in (32, 48):
        x = relu(scaled_conv(w, x, width, stride=2))
    x = squash(x.reshape(batch, -1, 8))
    for shape in ((3 * 3 * 6, 8, 16, 12), (16, 12, 10, 16)):
        x = route(w.weight(*shape), x)
    return x
