"""Small programs and helpers that the layout tests share; jax is imported where it is used."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from data.collect.layouts.realise import LayoutProgram, ProgramSource

N_SHARE_CHOICES = 0.7


def small_network():
    """Return a program with a convolution, pooling, padding, slices, a reshape and dots."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    rng = np.random.default_rng(0)
    shapes = ((2, 8, 8, 4), (3, 3, 4, 6), (96, 24), (24, 5))
    arguments = tuple(rng.standard_normal(shape, dtype=np.float32) for shape in shapes)

    def function(x, kernel, hidden, head):
        x = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jnp.pad(x, ((0, 0), (1, 0), (0, 2), (0, 0)))[:, 1:, :4, ::-1]
        x = jnp.concatenate([x[..., :3], x[..., 3:] * 2], axis=-1)
        x = jax.nn.relu(x - x.mean((1, 2), keepdims=True)).reshape(2, -1)
        hidden_state = jnp.tanh(x @ hidden)
        return hidden_state @ head, jnp.argmax(hidden_state, axis=-1)

    return function, arguments


def batched_dots():
    """Return attention scores with two batch axes, an update of a slice and a transpose."""
    import jax.numpy as jnp
    from jax import lax

    rng = np.random.default_rng(1)
    query, key = (rng.standard_normal((2, 6, 3, 4), dtype=np.float32) for _ in range(2))

    def function(query, key):
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
        scores = lax.dynamic_update_slice(scores, scores[:, :1] * 0, (0, 1, 2, 0))
        window = lax.dynamic_slice(scores, (0, 1, 1, 0), (2, 2, 5, 6))
        return jnp.einsum("bhqk,bkhd->bqhd", scores, key).transpose(3, 1, 0, 2), window

    return function, (query, key)


def scanned():
    """Return a loop whose body holds a dot, and a training step's gradient through it."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(2)
    weight, start = (rng.standard_normal(s, dtype=np.float32) * 0.3 for s in ((6, 6), (3, 6)))

    def loss(weight, start):
        def step(state, _):
            state = jnp.tanh(state @ weight)
            return state, state.sum()

        return jax.lax.scan(step, start, None, length=4)[1].sum()

    def function(weight, start):
        return weight - 0.1 * jax.grad(loss)(weight, start)

    return function, (weight, start)


BUILDERS = {"small_network": small_network, "batched_dots": batched_dots, "scanned": scanned}


def source(name: str) -> ProgramSource:
    """Return one of this file's programs."""
    return ProgramSource(name, name, "xla", BUILDERS[name])


@cache
def opened(name: str) -> LayoutProgram:
    """Return one of this file's programs, compiled once."""
    from data.collect.layouts.constraints import load_constrained

    return load_constrained(source(name))


def random_config(program: LayoutProgram, seed: int) -> NDArray[np.int8]:
    """Draw a (k, 18) config that sets most of the nodes."""
    rng = np.random.default_rng(seed)
    rows = [
        options[rng.integers(len(options)) if rng.random() < N_SHARE_CHOICES else 0]
        for options in program.options
    ]
    return np.stack(rows)


def assert_same_outputs(program: LayoutProgram, config: NDArray[np.int8]) -> None:
    """Check that a config computes what the default does, within rounding."""
    for expected, found in zip(
        program.outputs(program.default), program.outputs(config), strict=True
    ):
        assert found.dtype == expected.dtype
        if np.issubdtype(found.dtype, np.floating):
            scale = float(np.abs(expected).max()) + 1e-6
            tolerance = 200 * float(np.finfo(found.dtype).eps)
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(found, expected)
