"""Functions of varied kinds, with arguments, to write in all formats of JAX."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

Built = tuple[Callable[..., Any], Sequence[Any]]
# Each has something that the others lack: a loop, a convolution, new types, indices, a batched dot.
FAST = ("scan", "convolution_bf16", "fp8_dot", "no_argument", "gather", "attention")
CATALOGUE = (
    *("plain_b2", "depthwise_b1", "unet_train_b2", "mlp_train_b32", "lstm_b4", "dilated_b1"),
    *("gru_b8", "volume_b1", "recommender_b64", "attention_b2"),
)


def _ones(*shape: int, dtype: Any = np.float32) -> Any:
    return np.ones(shape, dtype)


def _program(name: str) -> Built:
    from autotune.programs.files import load_program

    return load_program(name).build()


def _scan() -> Built:
    import jax

    def step(carry: Any, x: Any) -> Any:
        return carry @ x, {"sum": carry.sum(), "pair": (x, x.T)}

    return lambda c, xs: jax.lax.scan(step, c, xs), (_ones(4, 4), _ones(5, 4, 4))


def _while_and_cond() -> Built:
    import jax

    def body(state: Any) -> Any:
        return jax.lax.cond(state[0] % 2 == 0, lambda s: (s[0] + 1, s[1] * 2), _next, state)

    def _next(state: Any) -> Any:
        return state[0] + 1, state[1].T

    return lambda x: jax.lax.while_loop(lambda s: s[0] < 9, body, (0, x)), (_ones(4, 4),)


def _convolution(dtype: Any) -> Built:
    import jax

    def convolve(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            *(x, kernel, (2, 1), [(1, 2), (-1, 0)]),
            rhs_dilation=(1, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )

    arguments = jax.tree.map(
        lambda x: jax.numpy.asarray(x, dtype), (_ones(2, 9, 9, 4), _ones(3, 3, 2, 8))
    )
    return convolve, arguments


def _fp8_dot() -> Built:
    import jax.numpy as jnp

    def dot(x: Any, y: Any) -> Any:
        return jnp.dot(x, y, preferred_element_type=jnp.float32), x.astype(jnp.int4)

    x = jnp.ones((8, 16), jnp.float8_e4m3fn)
    return dot, (x, jnp.ones((16, 4), jnp.float8_e4m3fn))


def _simple() -> dict[str, Callable[[], Built]]:
    import jax
    import jax.numpy as jnp

    square, key = _ones(6, 6), jax.random.key_data(jax.random.key(0))
    made: dict[str, Built] = {
        "no_argument": (lambda: (jnp.arange(12.0).reshape(3, 4), jnp.zeros((2,), jnp.bool_)), ()),
        "gather": (lambda x, i: (x[i], jnp.take(x, i, axis=1)), (square, key % 6)),
        "scatter": (lambda x, i: x.at[i].add(1.0).at[:, i].set(0.0), (square, key % 6)),
        "attention": (
            lambda q, k: jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)),
            (_ones(2, 5, 3, 4), _ones(2, 7, 3, 4)),
        ),
        "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x), jax.lax.top_k(x, 2)), (square,)),
        "fft": (lambda x: jnp.fft.irfft(jnp.fft.rfft(x)), (square,)),
        "random": (lambda k: jax.random.normal(k, (3, 4)), (key,)),
        "cholesky": (jnp.linalg.cholesky, (square,)),
        "solve": (lambda x: jax.scipy.linalg.solve_triangular(x, x), (square,)),
        "gradient": (jax.value_and_grad(lambda w, x: jnp.tanh(x @ w).sum()), (square, square)),
        "vmap": (jax.vmap(lambda x, y: jnp.outer(x, y) + x, (0, None)), (square, square[0])),
        "pooling": (
            lambda x: jax.lax.reduce_window(x, -1.0, jax.lax.max, (2, 2), (2, 1), "SAME"),
            (square,),
        ),
        "nested_tuples": (lambda x: ({"a": x, "b": (x[0], [x.T])}, jnp.int8(3)), (square,)),
        "complex": (lambda x: jnp.abs(jnp.exp(1j * x)), (square,)),
        "constants": (lambda x: x + np.arange(36.0, dtype=np.float32).reshape(6, 6), (square,)),
    }
    return {name: partial(lambda built: built, built) for name, built in made.items()}


def _all() -> dict[str, Callable[[], Built]]:
    names = (
        *("no_argument", "gather", "scatter", "attention", "sort", "fft", "random", "cholesky"),
        *("solve", "gradient", "vmap", "pooling", "nested_tuples", "complex", "constants"),
    )
    return {
        **{name: partial(_program, name) for name in CATALOGUE},
        **{name: partial(lambda name: _simple()[name](), name) for name in names},
        "scan": _scan,
        "while_and_cond": _while_and_cond,
        "convolution_bf16": partial(_convolution, "bfloat16"),
        "fp8_dot": _fp8_dot,
    }


# No import of JAX happens until a function is built.
FUNCTIONS = _all()
