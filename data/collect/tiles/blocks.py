"""What the catalogue's kernels do to blocks of any size; jax is imported where it is used.

Arrays are those of jax; the last axis of a block is whole where a function reduces over it.
"""

from typing import Any


def bias_relu(block: Any, bias: Any) -> Any:
    from jax import numpy as jnp

    return jnp.maximum(block + bias, 0)


def bias_gelu(block: Any, bias: Any) -> Any:
    from jax import nn

    return nn.gelu(block + bias)


def bias_silu(block: Any, bias: Any) -> Any:
    from jax import nn

    return nn.silu(block + bias)


def add_residual(block: Any, bias: Any, residual: Any) -> Any:
    return block + bias + residual


def add_residual_only(block: Any, residual: Any) -> Any:
    return block + residual


def gate(block: Any, other: Any) -> Any:
    from jax import nn

    return nn.sigmoid(block) * other


def exponential(block: Any, one: Any, two: Any) -> Any:
    from jax import numpy as jnp

    return jnp.exp(-jnp.abs(distance(block, one, two)))


def scaled_masked(block: Any, mask: Any) -> Any:
    return block * 0.125 + mask


def distance(block: Any, one: Any, two: Any) -> Any:
    return one[:, None] + two[None, :] - 2 * block


def softmax(x: Any) -> Any:
    from jax import nn

    return nn.softmax(x, axis=-1)


def logsumexp(x: Any) -> Any:
    from jax import nn

    return nn.logsumexp(x, axis=-1)


def layernorm(x: Any, scale: Any, shift: Any) -> Any:
    from jax import numpy as jnp

    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + 1e-5) * scale + shift


def residual_rmsnorm(x: Any, residual: Any, scale: Any) -> Any:
    from jax import numpy as jnp

    total = x + residual
    return total / jnp.sqrt(jnp.square(total).mean(axis=-1, keepdims=True) + 1e-5) * scale


def gelu_gate(x: Any, gate: Any) -> Any:
    from jax import nn

    return nn.gelu(x) * nn.sigmoid(gate)


def scale_transpose(x: Any, scale: Any) -> Any:
    return (x * scale).T + 1


def to_channels_first(x: Any, scale: Any) -> Any:
    return (x * scale).transpose(0, 3, 1, 2)


def max_pool(x: Any) -> Any:
    return x.max(axis=(2, 4))


def rotate(x: Any, angle: Any) -> Any:
    """Rotate the two halves of the last axis by an angle per position; b, s, h, d."""
    from jax import numpy as jnp

    one, two = jnp.split(x, 2, axis=-1)
    cosine, sine = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    return jnp.concatenate([one * cosine - two * sine, one * sine + two * cosine], axis=-1)


def column_sum(x: Any) -> Any:
    return (x * x).sum(axis=0)


def row_sum(x: Any) -> Any:
    return (x * x).sum(axis=-1)


def mean_pool(x: Any) -> Any:
    return x.sum(axis=(1, 2))


def masked_softmax(x: Any, mask: Any) -> Any:
    from jax import nn

    return nn.softmax(x * 0.125 + mask, axis=-1)


def log_softmax(x: Any) -> Any:
    from jax import nn

    return nn.log_softmax(x, axis=-1)


def middle_softmax(x: Any) -> Any:
    from jax import nn

    return nn.softmax(x, axis=1)


def l2_normalize(x: Any) -> Any:
    from jax import numpy as jnp

    return x / jnp.sqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6)


def instance_norm(x: Any) -> Any:
    """Normalise over h and w; n, h, w, c."""
    from jax import lax
    from jax import numpy as jnp

    centred = x - x.mean(axis=(1, 2), keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(axis=(1, 2), keepdims=True) + 1e-5)


def batchnorm_relu(x: Any, mean: Any, deviation: Any, scale: Any, shift: Any) -> Any:
    from jax import numpy as jnp

    return jnp.maximum((x - mean) / jnp.sqrt(deviation * deviation + 1e-3) * scale + shift, 0)


def middle_sum(x: Any) -> Any:
    from jax import numpy as jnp

    return jnp.abs(x).sum(axis=1)


def average_pool(x: Any) -> Any:
    return x.mean(axis=(2, 4))


def row_variance(x: Any) -> Any:
    return x.var(axis=-1)


def squared_error(x: Any, target: Any) -> Any:
    from jax import numpy as jnp

    return jnp.square(x - target).sum(axis=-1)


def cross_entropy(x: Any, target: Any) -> Any:
    return -(log_softmax(x) * target).sum(axis=-1)


def channel_max(x: Any) -> Any:
    return x.max(axis=-1)


def swap_heads(x: Any, scale: Any) -> Any:
    return (x * scale).transpose(0, 2, 1, 3)


def rotate_axes(x: Any) -> Any:
    from jax import numpy as jnp

    return jnp.abs(x).transpose(2, 0, 1)


def depth_to_space(x: Any) -> Any:
    """Spread windows over positions; n, h, w, p, q, c to n, h, p, w, q, c."""
    return x.transpose(0, 1, 3, 2, 4, 5) * 0.5


def upsample(x: Any, weights: Any) -> Any:
    """Make each position a window of weighted copies; n, h, w, c to n, h, p, w, q, c."""
    return x[:, :, None, :, None, :] * weights[None, None, :, None, :, None]


def add_relu(x: Any, other: Any) -> Any:
    from jax import numpy as jnp

    return jnp.maximum(x + other, 0)


def adam_update(x: Any, momentum: Any, square: Any) -> Any:
    from jax import numpy as jnp

    return x - 0.001 * momentum / (jnp.sqrt(jnp.abs(square)) + 1e-6)


def tanh_scale(x: Any, scale: Any) -> Any:
    from jax import numpy as jnp

    return jnp.tanh(x) * scale


def masked_fill(x: Any, mask: Any) -> Any:
    from jax import numpy as jnp

    return jnp.where(mask > 0, x, -1e9)


def pairwise_sums(one: Any, two: Any) -> Any:
    from jax import numpy as jnp

    return jnp.exp(-jnp.abs(one[:, None] - two[None, :]))


def squeeze_excite(x: Any, weights: Any) -> Any:
    from jax import nn

    return x * nn.sigmoid(weights)[:, None, None, :]


def laplace(x: Any) -> Any:
    """Second differences of h and w, both with a halo of 2."""
    inner = x[1:-1, 1:-1]
    return x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * inner


def blur_rows(x: Any) -> Any:
    """Weighted sum of five neighbours along w; n, h, w, c with a halo of 4 in w."""
    width = x.shape[2] - 4
    weights = (0.1, 0.2, 0.4, 0.2, 0.1)
    return sum(weight * x[:, :, at : at + width] for at, weight in enumerate(weights))


def finite_differences(x: Any) -> Any:
    """Sum of the absolute differences to the next element of each axis, a halo of 1 in all."""
    from jax import numpy as jnp

    here = x[:-1, :-1, :-1]
    one, two, three = x[1:, :-1, :-1], x[:-1, 1:, :-1], x[:-1, :-1, 1:]
    return jnp.abs(one - here) + jnp.abs(two - here) + jnp.abs(three - here)
