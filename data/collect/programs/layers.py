"""Layers that the catalogue's networks share: pure functions of arrays and explicit weights.

Shapes: b batch, h and w image axes, s sequence, d features, c channels. Images are (b, h, w, c)
and kernels (window…, c in, c out), as JAX users write them.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = list[Any]
Network = Callable[[Weights, Any], Any]
WINDOW_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


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
        """Return the weight (n_in, n_out) and bias (n_out,) of `dense`."""
        return [self.weight(n_in, n_out), 0.1 * self.array(n_out)]

    def integers(self, high: int, *shape: int) -> NDArray[np.int32]:
        """Return int32 numbers below `high`."""
        return self._rng.integers(0, high, shape, dtype=np.int32)


def dense(weights: Weights, x: Any) -> Any:
    """Return x W + bias over the last axis."""
    weight, bias = weights
    return x @ weight + bias


def convolve(
    weight: Any,
    x: Any,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    padding: str = "SAME",
) -> Any:
    """Convolve (b, window…, c) with (window…, c / groups, c out)."""
    from jax import lax

    letters = WINDOW_LETTERS[x.ndim - 2]
    return lax.conv_general_dilated(
        x,
        weight,
        (stride,) * len(letters),
        padding,
        rhs_dilation=(dilation,) * len(letters),
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=groups,
    )


def upsample(weight: Any, x: Any) -> Any:
    """Convolve transposed with stride 2: (b, h, w, c) to (b, 2 h, 2 w, c out)."""
    from jax import lax

    return lax.conv_transpose(x, weight, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def channel_affine(weights: Weights, x: Any) -> Any:
    """Scale and shift each channel, as batch normalisation does when it serves."""
    scale, shift = weights
    return x * scale + shift


def batch_norm(weights: Weights, x: Any) -> Any:
    """Normalise each channel over all other axes, then scale and shift."""
    from jax import lax

    axes = tuple(range(x.ndim - 1))
    centred = x - x.mean(axes)
    variance = (centred * centred).mean(axes)
    return channel_affine(weights, centred * lax.rsqrt(variance + 1e-5))


def layer_norm(weights: Weights, x: Any) -> Any:
    """Normalise over the last axis, then scale and shift."""
    from jax import lax

    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return channel_affine(weights, centred * lax.rsqrt(variance + 1e-5))


def average_pool(x: Any) -> Any:
    """Average over the axes between batch and channels."""
    return x.mean(tuple(range(1, x.ndim - 1)))


def max_pool(x: Any) -> Any:
    """Take the maximum over 2 x 2 windows of stride 2."""
    from jax import lax

    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def training_step(network: Network, rate: float = 1e-3) -> Callable[[Weights, Any, Any], Weights]:
    """Return a step of gradient descent on the squared error: (weights, x, target) to weights."""
    import jax

    def loss(weights: Weights, x: Any, target: Any) -> Any:
        difference = network(weights, x) - target
        return (difference * difference).mean()

    def step(weights: Weights, x: Any, target: Any) -> Weights:
        gradient = jax.grad(loss)(weights, x, target)
        return jax.tree.map(lambda weight, slope: weight - rate * slope, weights, gradient)

    return step


def example_target(network: Network, weights: Weights, x: Any, draw: Draw) -> NDArray[np.float32]:
    """Return a random array of the shape of the network's output."""
    import jax

    return draw.array(*jax.eval_shape(network, weights, x).shape)


def pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    """Return neighbours: the widths in and out of each layer."""
    return list(pairwise(values))
