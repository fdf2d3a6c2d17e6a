"""Drawn weights, layers and the training step that all measured networks share.

An architecture (in convolutional.py, dense.py and transformers.py, by its public name) takes a
batch size, some a depth, and returns a network, its weights and an example input. Weights are
arguments, drawn from a seed. Needs jax, so it is imported where one is built.

Shapes: b batch, h and w image axes, s sequence, d features, c channels. Images are (b, h, w, c)
and kernels (window…, c in, c out), as JAX users write them.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from numpy.typing import NDArray

Weights = list[Any]
Network = Callable[[Weights, Any], Any]
Parts = tuple[Network, Weights, Any]
WINDOW_LETTERS = {1: "W", 2: "HW", 3: "DHW"}
TARGET_SEED, RATE = 99, 1e-3


class Draw:
    """Draws example arrays from a seed, weights scaled so that activations keep their size."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def array(self, *shape: int) -> NDArray[np.float32]:
        """Return a standard normal array."""
        return self._rng.standard_normal(shape).astype(np.float32)

    def weight(self, *shape: int) -> NDArray[np.float32]:
        """Return a weight (…fan in, out) of variance 1 / fan in."""
        fan_in = max(1, int(np.prod(shape[:-1])))
        return self.array(*shape) * np.float32(fan_in**-0.5)

    def affine(self, width: int) -> Weights:
        """Return a scale and a shift (width,)."""
        return [1 + 0.1 * self.array(width), 0.1 * self.array(width)]

    def dense(self, n_in: int, n_out: int) -> Weights:
        """Return the weight (n_in, n_out) and bias (n_out,) of a dense layer."""
        return [self.weight(n_in, n_out), 0.1 * self.array(n_out)]

    def scaled(self, *shape: int) -> Weights:
        """Return a convolution's kernel and the affine of its output."""
        return [self.weight(*shape), self.affine(shape[-1])]

    def integers(self, high: int, *shape: int) -> NDArray[np.int32]:
        """Return int32 numbers below `high`."""
        return self._rng.integers(0, high, shape, dtype=np.int32)


def training_step(parts: Parts) -> tuple[Callable[..., Weights], tuple[Any, ...]]:
    """Return a step of gradient descent on the squared error, and its (weights, x, target)."""
    network, weights, x = parts

    def loss(weights: Weights, x: Any, target: Any) -> Any:
        difference = network(weights, x) - target
        return (difference * difference).mean()

    def step(weights: Weights, x: Any, target: Any) -> Weights:
        gradient = jax.grad(loss)(weights, x, target)
        return jax.tree.map(lambda weight, slope: weight - RATE * slope, weights, gradient)

    target = Draw(TARGET_SEED).array(*jax.eval_shape(network, weights, x).shape)
    return step, (weights, x, target)


def dense(weights: Weights, x: Any) -> Any:
    """Map the last axis: (…, d in) to (…, d out)."""
    weight, bias = weights
    return x @ weight + bias


def convolve(weight: Any, x: Any, *, stride: int = 1, dilation: int = 1, groups: int = 1) -> Any:
    """Convolve (b, window…, c) with (window…, c / groups, c out)."""
    letters = WINDOW_LETTERS[x.ndim - 2]
    return lax.conv_general_dilated(
        x,
        weight,
        (stride,) * len(letters),
        "SAME",
        rhs_dilation=(dilation,) * len(letters),
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=groups,
    )


def upsample(weight: Any, x: Any) -> Any:
    """Convolve transposed with stride 2: (b, h, w, c) to (b, 2 h, 2 w, c out)."""
    return lax.conv_transpose(x, weight, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def rescale(weights: Weights, x: Any) -> Any:
    """Scale and shift each channel; see `Draw.affine`."""
    scale, shift = weights
    return x * scale + shift


def batch_norm(weights: Weights, x: Any) -> Any:
    """Normalise each channel over all other axes, and rescale."""
    axes = tuple(range(x.ndim - 1))
    centred = x - x.mean(axes)
    variance = (centred * centred).mean(axes)
    return rescale(weights, centred * lax.rsqrt(variance + 1e-5))


def layer_norm(weights: Weights, x: Any) -> Any:
    """Normalise over the channels, and rescale."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return rescale(weights, centred * lax.rsqrt(variance + 1e-5))


def average_pool(x: Any) -> Any:
    """Average over the window axes: (b, window…, c) to (b, c)."""
    return x.mean(tuple(range(1, x.ndim - 1)))


def max_pool(x: Any) -> Any:
    """Keep the largest of 2 x 2: (b, h, w, c) to (b, h / 2, w / 2, c)."""
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
