"""Seven JAX functions of a user of `optimize`. None is in the catalogue of the sample."""

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp


def transformer(x: Any, qkv: Any, out: Any, up: Any, down: Any) -> Any:
    """Apply one pre-norm block: 64 tokens of width 128, 4 heads."""

    def normed(y: Any) -> Any:
        return (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5)

    q, k, v = jnp.split(normed(x) @ qkv, 3, axis=-1)
    q, k, v = (y.reshape(*y.shape[:2], 4, -1) for y in (q, k, v))
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) / 6, axis=-1)
    x = x + jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape) @ out
    return x + jax.nn.gelu(normed(x) @ up) @ down


def n_body(place: Any, speed: Any) -> Any:
    """Simulate four steps of 256 bodies that attract each other."""
    for _ in range(4):
        apart = place[:, None] - place[None]
        near = jnp.sum(apart**2, axis=-1) + 0.1
        speed = speed - 0.01 * jnp.sum(apart * (near**-1.5)[..., None], axis=1)
        place = place + 0.01 * speed
    return place, speed


def elementwise(x: Any, y: Any) -> Any:
    """Apply a chain of cheap operations to a million numbers."""
    for step in range(12):
        x = x * y + 0.5 * jnp.maximum(x - y, 0.1 * step)
        y = y - 0.01 * x * x
    return x + y


def lstm(x: Any, w: Any, u: Any) -> Any:
    """Scan 64 steps of 8 sequences, 64 units."""

    def step(state: Any, now: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(now @ w + h @ u, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((8, 64))
    return jax.lax.scan(step, (zeros, zeros), x)[1]


def mlp_step(weights: Any, x: Any, y: Any) -> Any:
    """Take a training step of three dense layers."""

    def loss(weights: Any) -> Any:
        hidden = x
        for matrix in weights[:-1]:
            hidden = jax.nn.relu(hidden @ matrix)
        return jnp.mean((hidden @ weights[-1] - y) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def batch_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Normalise images over their batch, and rectify."""
    mean = x.mean((0, 1, 2))
    var = ((x - mean) ** 2).mean((0, 1, 2))
    return jnp.maximum((x - mean) / jnp.sqrt(var + 1e-5) * scale + shift, 0)


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attend causally: 8 heads, 128 tokens, 32 channels."""
    scores = jnp.einsum("htd,hsd->hts", q, k) / 6
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores, axis=-1), v)


def _random_arrays(*shapes: tuple[int, ...], scale: float = 0.1) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return tuple((scale * rng.normal(size=shape)).astype(np.float32) for shape in shapes)


def mlp_step_arguments() -> tuple[Any, ...]:
    weights = list(_random_arrays((128, 256), (256, 256), (256, 10)))
    return weights, *_random_arrays((64, 128), (64, 10))


transformer_arguments = partial(
    _random_arrays, (2, 64, 128), (128, 384), (128, 128), (128, 512), (512, 128)
)
n_body_arguments = partial(_random_arrays, (256, 3), (256, 3), scale=1.0)
elementwise_arguments = partial(_random_arrays, (1024, 1024), (1024, 1024))
lstm_arguments = partial(_random_arrays, (64, 8, 32), (32, 256), (64, 256))
batch_norm_arguments = partial(_random_arrays, (8, 32, 32, 64), (64,), (64,))
attention_arguments = partial(_random_arrays, (8, 128, 32), (8, 128, 32), (8, 128, 32))
