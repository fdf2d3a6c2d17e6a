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
