"""Random weights, layers, and the training step of all programs.

An architecture is a public function of convolutional.py, dense.py, scientific.py, texts.py or
transformers.py. It returns the output of a network. Its arguments are:

    w         source of the weights
    inputs    source of the example inputs
    batch     batch size
    depth     number of blocks, if the architecture has it

The weights and inputs become the arguments of the program, in the order of the requests. This
module imports jax, so it is imported only when a program is built.

Shapes: b batch, h and w image axes, s sequence, d features, c channels. Images are (b, h, w, c)
and kernels (window…, c in, c out). Layers map x to `width` channels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

# Its arguments are the list of weights, then the inputs.
Network = Callable[..., Any]
WINDOW_LETTERS = {1: "W", 2: "HW", 3: "DHW"}
SEED, RATE = 0, 1e-3


class Draw:
    """Source of arrays: the first run of a network draws them, and later runs receive them.

    Args:
        rng: Random generator of the first run. None in later runs.

    Attributes:
        requested: Arrays that the first run has drawn. Each `part` is a list within the list.
    """

    def __init__(self, rng: np.random.Generator | None, arrays: Sequence[Any] = ()) -> None:
        self._rng, self._arrays = rng, iter(arrays)
        self.requested: list[Any] = []

    def _request(self, make: Callable[[np.random.Generator], Any]) -> Any:
        if self._rng is None:
            return next(self._arrays)
        self.requested.append(make(self._rng))
        return jnp.asarray(self.requested[-1])

    def part(self) -> "Draw":
        """Return a source of arrays that are requested later, but have their place here."""
        if self._rng is None:
            return Draw(None, next(self._arrays))
        part = Draw(self._rng)
        self.requested.append(part.requested)
        return part

    def array(self, *shape: int, scale: float = 1.0, mean: float = 0.0) -> Any:
        """Return a random normal float32 array with a standard deviation `scale`."""
        return self._request(
            lambda rng: (mean + scale * rng.standard_normal(shape)).astype(np.float32)
        )

    def weight(self, *shape: int) -> Any:
        """Return a weight (…fan in, out) with variance 1 / fan in: activations keep their scale."""
        return self.array(*shape, scale=max(1, int(np.prod(shape[:-1]))) ** -0.5)

    def affine(self, width: int) -> tuple[Any, Any]:
        """Return a random scale and shift."""
        return self.array(width, scale=0.1, mean=1.0), self.array(width, scale=0.1)

    def dense(self, n_in: int, n_out: int) -> tuple[Any, Any]:
        """Return the weight (n_in, n_out) and bias (n_out,) of a dense layer."""
        return self.weight(n_in, n_out), self.array(n_out, scale=0.1)

    def integers(self, high: int, *shape: int) -> Any:
        """Return random int32 numbers below `high`."""
        return self._request(lambda rng: rng.integers(0, high, shape, dtype=np.int32))

    def fixed(self, array: Any) -> Any:
        """Return an array that is not random."""
        return self._request(lambda _: array)


def build_network(architecture: Callable[..., Any], *sizes: int) -> tuple[Network, tuple[Any, ...]]:
    """Return the network of an architecture with some sizes, and its example arguments."""
    rng = np.random.default_rng(SEED)
    w, example = Draw(rng), Draw(rng)
    jax.eval_shape(lambda: architecture(w, example, *sizes))

    def network(weights: list[Any], *inputs: Any) -> Any:
        return architecture(Draw(None, weights), Draw(None, inputs), *sizes)

    return network, (w.requested, *example.requested)


def training_step(network: Network, arguments: tuple[Any, ...]) -> tuple[Network, tuple[Any, ...]]:
    """Return a step of gradient descent on the squared error, and its example arguments.

    The target is added as the last argument.
    """

    def loss(weights: list[Any], *arguments: Any) -> Any:
        *inputs, target = arguments
        difference = network(weights, *inputs) - target
        return (difference * difference).mean()

    def step(weights: list[Any], *arguments: Any) -> list[Any]:
        gradient = jax.grad(loss)(weights, *arguments)
        new_weights: list[Any] = jax.tree.map(lambda w, slope: w - RATE * slope, weights, gradient)
        return new_weights

    shape = jax.eval_shape(network, *arguments).shape
    target = np.random.default_rng(SEED).standard_normal(shape).astype(np.float32)
    return step, (*arguments, target)


def linear(weights: tuple[Any, Any], x: Any) -> Any:
    """Map the last axis by a weight (d in, d out) and a bias (d out,)."""
    weight, bias = weights
    return x @ weight + bias


def dense(w: Draw, x: Any, width: int) -> Any:
    """Map the last axis by a new dense layer."""
    return linear(w.dense(x.shape[-1], width), x)


def convolve(kernel: Any, x: Any, *, stride: int = 1, dilation: int = 1, groups: int = 1) -> Any:
    """Convolve with a kernel (window…, c / groups, c out) and zero padding."""
    letters = WINDOW_LETTERS[x.ndim - 2]
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride,) * len(letters),
        "SAME",
        rhs_dilation=(dilation,) * len(letters),
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=groups,
    )


def conv(
    w: Draw, x: Any, width: int, *window: int, stride: int = 1, groups: int = 1, dilation: int = 1
) -> Any:
    """Convolve with a new kernel. The default window is 3 x 3."""
    kernel = w.weight(*(window or (3, 3)), x.shape[-1] // groups, width)
    return convolve(kernel, x, stride=stride, dilation=dilation, groups=groups)


def scaled_conv(w: Draw, x: Any, width: int, *window: int, **how: int) -> Any:
    """Convolve as `conv` does, then rescale."""
    return rescale(w, conv(w, x, width, *window, **how))


def upsample(w: Draw, x: Any, width: int, *, window: int = 3) -> Any:
    """Apply a transposed convolution with stride 2: (b, h, w, c) to (b, 2 h, 2 w, width)."""
    kernel = w.weight(window, window, x.shape[-1], width)
    return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def rescale(w: Draw, x: Any) -> Any:
    """Scale and shift each channel."""
    scale, shift = w.affine(x.shape[-1])
    return x * scale + shift


def normalised(x: Any, axes: tuple[int, ...]) -> Any:
    """Normalise to mean 0 and variance 1."""
    difference = x - x.mean(axes, keepdims=True)
    variance = (difference * difference).mean(axes, keepdims=True)
    return difference * lax.rsqrt(variance + 1e-5)


def batch_norm(w: Draw, x: Any) -> Any:
    """Normalise each channel over all other axes, and rescale."""
    axes = tuple(range(x.ndim - 1))
    difference = x - x.mean(axes)
    variance = (difference * difference).mean(axes)
    return rescale(w, difference * lax.rsqrt(variance + 1e-5))


def layer_norm(w: Draw, x: Any) -> Any:
    """Normalise over the channels, and rescale."""
    return rescale(w, normalised(x, (-1,)))


def instance_norm(w: Draw, x: Any) -> Any:
    """Normalise each channel of each image, and rescale."""
    return rescale(w, normalised(x, (1, 2)))


def average_pool(x: Any) -> Any:
    """Average over the window axes: (b, window…, c) to (b, c)."""
    return x.mean(tuple(range(1, x.ndim - 1)))


def max_pool(x: Any) -> Any:
    """Return the maximum of each 2 x 2 window: (b, h, w, c) to (b, h / 2, w / 2, c)."""
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
