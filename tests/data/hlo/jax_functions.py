"""Functions with arguments, to write in all formats of JAX.

Each has something that the others lack: a loop, a convolution, new types, indices, a batched dot.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Built = tuple[Callable[..., Any], Sequence[Any]]


def _ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def _scan() -> Built:
    import jax

    def step(carry: Any, x: Any) -> Any:
        return carry @ x, {"sum": carry.sum(), "pair": (x, x.T)}

    return lambda c, xs: jax.lax.scan(step, c, xs), (_ones(4, 4), _ones(5, 4, 4))


def _convolution() -> Built:
    import jax

    def convolve(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            *(x, kernel, (2, 1), [(1, 2), (-1, 0)]),
            rhs_dilation=(1, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )

    return convolve, [
        jax.numpy.asarray(x, "bfloat16") for x in (_ones(2, 9, 9, 4), _ones(3, 3, 2, 8))
    ]


def _fp8_dot() -> Built:
    import jax.numpy as jnp

    def dot(x: Any, y: Any) -> Any:
        return jnp.dot(x, y, preferred_element_type=jnp.float32), x.astype(jnp.int4)

    x = jnp.ones((8, 16), jnp.float8_e4m3fn)
    return dot, (x, jnp.ones((16, 4), jnp.float8_e4m3fn))


def _no_argument() -> Built:
    import jax.numpy as jnp

    return lambda: (jnp.arange(12.0).reshape(3, 4), jnp.zeros((2,), jnp.bool_)), ()


def _gather() -> Built:
    import jax.numpy as jnp

    return lambda x, i: (x[i], jnp.take(x, i, axis=1)), (_ones(6, 6), np.array([1, 5], np.uint32))


def _attention() -> Built:
    import jax

    def attend(q: Any, k: Any) -> Any:
        return jax.nn.softmax(jax.numpy.einsum("bqhd,bkhd->bhqk", q, k))

    return attend, (_ones(2, 5, 3, 4), _ones(2, 7, 3, 4))


# No import of JAX happens until a function is built.
FUNCTIONS: dict[str, Callable[[], Built]] = {
    "scan": _scan,
    "convolution_bf16": _convolution,
    "fp8_dot": _fp8_dot,
    "no_argument": _no_argument,
    "gather": _gather,
    "attention": _attention,
}
