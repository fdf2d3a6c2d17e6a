"""The functions of kernels.tsv, by name. They work on blocks of any size.

This module imports jax, so it is imported only when a kernel runs. If a function reduces over the
last axis, blocks contain that axis completely.
"""

from collections.abc import Callable
from typing import Any

from jax import lax, nn
from jax import numpy as jnp


def _distance(block: Any, one: Any, two: Any) -> Any:
    return one[:, None] + two[None, :] - 2 * block


def _layernorm(x: Any, scale: Any, shift: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + 1e-5) * scale + shift


def _residual_rmsnorm(x: Any, residual: Any, scale: Any) -> Any:
    total = x + residual
    return total / jnp.sqrt(jnp.square(total).mean(axis=-1, keepdims=True) + 1e-5) * scale


def _instance_norm(x: Any) -> Any:
    centred = x - x.mean(axis=(1, 2), keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(axis=(1, 2), keepdims=True) + 1e-5)


def _rotary(x: Any, angle: Any) -> Any:
    one, two = jnp.split(x, 2, axis=-1)
    cosine, sine = jnp.cos(angle)[:, None, :], jnp.sin(angle)[:, None, :]
    return jnp.concatenate([one * cosine - two * sine, one * sine + two * cosine], axis=-1)


def _laplace(x: Any) -> Any:
    inner = x[1:-1, 1:-1]
    return x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * inner


def _blur_rows(x: Any) -> Any:
    width = x.shape[2] - 4
    weights = (0.1, 0.2, 0.4, 0.2, 0.1)
    return sum(weight * x[:, :, at : at + width] for at, weight in enumerate(weights))


def _finite_differences(x: Any) -> Any:
    here = x[:-1, :-1, :-1]
    one, two, three = x[1:, :-1, :-1], x[:-1, 1:, :-1], x[:-1, :-1, 1:]
    return jnp.abs(one - here) + jnp.abs(two - here) + jnp.abs(three - here)


def _convolve(x: Any, weights: Any, *, dilation: int = 1, groups: int = 1) -> Any:
    return lax.conv_general_dilated(
        x,
        weights,
        window_strides=(1, 1),
        padding="VALID",
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {
    # Combinations of two operands, in addition to einsum.
    "convolve": _convolve,
    "convolve_dilated": lambda x, weights: _convolve(x, weights, dilation=2),
    "convolve_depthwise": lambda x, w: _convolve(x, w[:, :, None, :], groups=x.shape[-1]),
    # Epilogues.
    "bias_relu": lambda block, bias: jnp.maximum(block + bias, 0),
    "bias_gelu": lambda block, bias: nn.gelu(block + bias),
    "bias_silu": lambda block, bias: nn.silu(block + bias),
    "add_residual": lambda block, bias, residual: block + bias + residual,
    "add_residual_only": lambda block, residual: block + residual,
    "gate": lambda block, other: nn.sigmoid(block) * other,
    "exponential": lambda block, one, two: jnp.exp(-jnp.abs(_distance(block, one, two))),
    "scaled_masked": lambda block, mask: block * 0.125 + mask,
    "distance": _distance,
    # Normalisations.
    "softmax": lambda x: nn.softmax(x, axis=-1),
    "masked_softmax": lambda x, mask: nn.softmax(x * 0.125 + mask, axis=-1),
    "log_softmax": lambda x: nn.log_softmax(x, axis=-1),
    "middle_softmax": lambda x: nn.softmax(x, axis=1),
    "layernorm": _layernorm,
    "residual_rmsnorm": _residual_rmsnorm,
    "l2_normalize": lambda x: x / jnp.sqrt(jnp.square(x).sum(axis=-1, keepdims=True) + 1e-6),
    "instance_norm": _instance_norm,
    "batchnorm_relu": lambda x, mean, deviation, scale, shift: jnp.maximum(
        (x - mean) / jnp.sqrt(deviation * deviation + 1e-3) * scale + shift, 0
    ),
    # Reductions.
    "column_sum": lambda x: (x * x).sum(axis=0),
    "row_sum": lambda x: (x * x).sum(axis=-1),
    "middle_sum": lambda x: jnp.abs(x).sum(axis=1),
    "max_pool": lambda x: x.max(axis=(2, 4)),
    "average_pool": lambda x: x.mean(axis=(2, 4)),
    "mean_pool": lambda x: x.sum(axis=(1, 2)),
    "logsumexp": lambda x: nn.logsumexp(x, axis=-1),
    "row_variance": lambda x: x.var(axis=-1),
    "squared_error": lambda x, target: jnp.square(x - target).sum(axis=-1),
    "cross_entropy": lambda x, target: -(nn.log_softmax(x, axis=-1) * target).sum(axis=-1),
    "channel_max": lambda x: x.max(axis=-1),
    # Moves.
    "scale_transpose": lambda x, scale: (x * scale).T + 1,
    "channels_first": lambda x, scale: (x * scale).transpose(0, 3, 1, 2),
    "swap_heads": lambda x, scale: (x * scale).transpose(0, 2, 1, 3),
    "rotate_axes": lambda x: jnp.abs(x).transpose(2, 0, 1),
    "depth_to_space": lambda x: x.transpose(0, 1, 3, 2, 4, 5) * 0.5,
    "upsample": lambda x, weights: (
        x[:, :, None, :, None, :] * weights[None, None, :, None, :, None]
    ),
    # Elementwise.
    "gelu_gate": lambda x, gate: nn.gelu(x) * nn.sigmoid(gate),
    "rotary": _rotary,
    "add_relu": lambda x, other: jnp.maximum(x + other, 0),
    "adam_update": lambda x, momentum, square: (
        x - 0.001 * momentum / (jnp.sqrt(jnp.abs(square)) + 1e-6)
    ),
    "tanh_scale": lambda x, scale: jnp.tanh(x) * scale,
    "masked_fill": lambda x, mask: jnp.where(mask > 0, x, -1e9),
    "pairwise_sums": lambda one, two: jnp.exp(-jnp.abs(one[:, None] - two[None, :])),
    "squeeze_excite": lambda x, weights: x * nn.sigmoid(weights)[:, None, None, :],
    # Stencils.
    "laplace": _laplace,
    "blur_rows": _blur_rows,
    "finite_differences": _finite_differences,
}
