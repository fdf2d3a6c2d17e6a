"""Programs of science with learned parts: filters, transport, flows, fields, particles and rays.

See `autotune.programs.layers` for shapes and arguments.
"""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.nn import gelu, relu, sigmoid, softplus

from autotune.programs.layers import (
    Draw,
    conv,
    convolve,
    dense,
    layer_norm,
    linear,
    normalised,
    scaled_conv,
)


def kalman(w: Draw, inputs: Draw, batch: int) -> Any:
    """A Kalman filter. Newton steps invert the covariance of the expected observation."""
    n_states, n_seen, n_steps = 24, 16, 4
    x = inputs.array(batch, n_steps, n_seen)
    move, look = w.weight(n_states, n_states), w.weight(n_states, n_seen)
    identity, noise = np.eye(n_states, dtype=np.float32), np.eye(n_seen, dtype=np.float32)
    mean = dense(w, x.mean(1), n_states)
    spread = jnp.broadcast_to(identity, (batch, n_states, n_states))
    means = []
    for step in range(n_steps):
        mean = mean @ move
        spread = jnp.einsum("ji,bjk,kl->bil", move, spread, move) + 0.1 * identity
        cross_covariance = jnp.einsum("bij,jk->bik", spread, look)
        innovation = jnp.einsum("ij,bik->bjk", look, cross_covariance) + noise
        inverse = noise / jnp.trace(innovation, axis1=1, axis2=2)[:, None, None]
        for _ in range(4):
            inverse = 2 * inverse - jnp.einsum("bij,bjk,bkl->bil", inverse, innovation, inverse)
        gain = jnp.einsum("bik,bkl->bil", cross_covariance, inverse)
        mean = mean + jnp.einsum("bil,bl->bi", gain, x[:, step] - mean @ look)
        spread = spread - jnp.einsum("bil,bjl->bij", gain, cross_covariance)
        means.append(mean)
    return dense(w, jnp.stack(means, axis=1), 32)


def sinkhorn(w: Draw, inputs: Draw, batch: int) -> Any:
    """Transport of a point cloud to another. Sinkhorn steps normalise the plan."""
    n_points, width, heads = 40, 48, 3
    x, y = (
        gelu(layer_norm(w, dense(w, inputs.array(batch, n_points, 8), heads * width)))
        for _ in range(2)
    )
    x, y = (points.reshape(batch, n_points, heads, width) for points in (x, y))
    plan = jnp.einsum("bihd,bjhd->bhij", x, y) / width**0.5
    for _ in range(5):
        plan = plan - jax.nn.logsumexp(plan, axis=3, keepdims=True)
        plan = plan - jax.nn.logsumexp(plan, axis=2, keepdims=True)
    images = jnp.einsum("bhij,bjhd->bihd", jnp.exp(plan), y)
    gap = jnp.concatenate([x, images - x], axis=-1).reshape(batch, n_points, -1)
    return dense(w, gelu(dense(w, gap, 96)), 24)


def slots(w: Draw, inputs: Draw, batch: int) -> Any:
    """Slot attention: a few slots compete for the pixels of an image in three steps."""
    width, n_slots = 48, 6
    x = gelu(scaled_conv(w, inputs.array(batch, 24, 24, 3), width, stride=2))
    x = layer_norm(w, scaled_conv(w, x, width).reshape(batch, -1, width))
    key, value, ask = dense(w, x, width), dense(w, x, width), w.dense(width, width)
    widen, narrow, gates = w.dense(width, 96), w.dense(96, width), w.dense(2 * width, 2 * width)
    slots_now = jnp.broadcast_to(w.array(n_slots, width), (batch, n_slots, width))
    for _ in range(3):
        scores = jnp.einsum("bkd,bsd->bks", linear(ask, slots_now), key) / width**0.5
        share = jax.nn.softmax(scores, axis=1)
        share = share / (share.sum(2, keepdims=True) + 1e-6)
        won = jnp.einsum("bks,bsd->bkd", share, value)
        update, keep = jnp.split(
            sigmoid(linear(gates, jnp.concatenate([slots_now, won], axis=-1))), 2, axis=-1
        )
        slots_now = update * slots_now + keep * jnp.tanh(won)
        slots_now = slots_now + linear(narrow, relu(linear(widen, normalised(slots_now, (-1,)))))
    return dense(w, slots_now, 32)


def coupling(w: Draw, inputs: Draw, batch: int) -> Any:
    """A normalising flow. Half of the channels compute a scale and a shift of the other half."""
    x = inputs.array(batch, 16, 16, 3)
    x = x.reshape(batch, 8, 2, 8, 2, 3).transpose(0, 1, 3, 2, 4, 5).reshape(batch, 8, 8, 12)
    volume: Any = 0.0
    for _ in range(5):
        x = conv(w, x, 12, 1, 1)
        first_half, second_half = jnp.split(x, 2, axis=-1)
        y = relu(conv(w, first_half, 32))
        y = conv(w, relu(conv(w, y, 32, 1, 1)), 12)
        scale, shift = jnp.split(y, 2, axis=-1)
        scale = sigmoid(scale + 2)
        x = jnp.concatenate([first_half, scale * second_half + shift], axis=-1)
        volume = volume + jnp.log(scale).sum((1, 2, 3))
    return jnp.concatenate([x.reshape(batch, -1), volume[:, None]], axis=-1)


def stencil(w: Draw, inputs: Draw, batch: int, depth: int = 4) -> Any:
    """Finite differences of fields on a torus, with corrections by a small network."""
    n_fields = 4
    x, rates = inputs.array(batch, 32, 32, n_fields), w.weight(n_fields, n_fields)
    first, last = w.weight(3, 3, 3 * n_fields, 16), w.weight(1, 1, 16, n_fields)
    for _ in range(depth):
        rows = jnp.roll(x, 1, axis=1) - jnp.roll(x, -1, axis=1)
        columns = jnp.roll(x, 1, axis=2) - jnp.roll(x, -1, axis=2)
        around = [jnp.roll(x, by, axis=axis) for by in (1, -1) for axis in (1, 2)]
        spread = sum(around[1:], around[0]) - 4 * x
        read = jnp.concatenate([x, rows, columns], axis=-1)
        x = x + 0.1 * (spread @ rates - x * (rows + columns))
        x = x + 0.1 * convolve(last, jnp.tanh(convolve(first, read)))
    return x


def beliefs(w: Draw, inputs: Draw, batch: int) -> Any:
    """Belief propagation on a grid: each cell sends messages to its four neighbours."""
    n_labels, size = 12, 20
    evidence = conv(w, relu(scaled_conv(w, inputs.array(batch, size, size, 3), 24)), n_labels, 1, 1)
    fits = [w.weight(n_labels, n_labels) for _ in range(2)]
    # The image axis and the step along it.
    ways = ((1, 1), (1, -1), (2, 1), (2, -1))
    messages = [jnp.zeros_like(evidence) for _ in ways]
    for _ in range(3):
        total = evidence + sum(messages[1:], messages[0])
        new_messages = []
        for number, (axis, by) in enumerate(ways):
            # A message back to a neighbour leaves out the message of that neighbour.
            sum_of_others = total - messages[number ^ 1]
            likely = jnp.exp(sum_of_others - sum_of_others.max(-1, keepdims=True))
            message = jnp.log(likely @ jnp.exp(fits[axis - 1]) + 1e-6)
            new_messages.append(jnp.roll(message - message.mean(-1, keepdims=True), by, axis=axis))
        messages = new_messages
    return jax.nn.log_softmax(evidence + sum(messages[1:], messages[0]), axis=-1)


def hypernet(w: Draw, inputs: Draw, batch: int) -> Any:
    """A hypernetwork: one network computes the weights of another for each task of the batch."""
    width, n_examples = 32, 64
    x, task = inputs.array(batch, n_examples, 16), inputs.array(batch, 24)
    code = relu(dense(w, relu(dense(w, task, 64)), 48))
    for n_out in (width, width, width, 8):
        n_in = x.shape[-1]
        weight = dense(w, code, n_in * n_out).reshape(batch, n_in, n_out) / n_in
        y = jnp.einsum("bsi,bio->bso", x, weight) + dense(w, code, n_out)[:, None]
        x = layer_norm(w, gelu(y))
    return x


def tensor_train(w: Draw, inputs: Draw, batch: int) -> Any:
    """Dense layers in tensor-train form: the weight is a product of three small cores."""
    rank = 6
    x = inputs.array(batch, 8, 8, 8)
    for _ in range(4):
        first, middle, last = (
            w.weight(*shape) for shape in ((8, 8, rank), (8, rank, 8, rank), (8, rank, 8))
        )
        y = jnp.einsum("bijk,iar->bjkar", x, first)
        y = jnp.einsum("bjkar,jrcs->bkacs", y, middle)
        y = jnp.einsum("bkacs,ksd->bacd", y, last)
        x = x + gelu(layer_norm(w, y))
    return dense(w, x.reshape(batch, -1), 64)


def inner_steps(w: Draw, inputs: Draw, batch: int, depth: int = 2) -> Any:
    """Meta-learning: each task takes `depth` gradient steps on its examples before it answers."""
    n_examples, n_in, n_out = 24, 20, 8
    x, answers = inputs.array(batch, n_examples, n_in), inputs.array(batch, n_examples, n_out)
    queries = inputs.array(batch, n_examples, n_in)
    layers = [w.weight(a, b) for a, b in ((n_in, 48), (48, 48), (48, n_out))]
    weights = [jnp.broadcast_to(layer, (batch, *layer.shape)) for layer in layers]

    def answer(weights: list[Any], x: Any) -> Any:
        for layer in weights[:-1]:
            x = jnp.tanh(jnp.einsum("bsi,bio->bso", x, layer))
        return jnp.einsum("bsi,bio->bso", x, weights[-1])

    def loss(weights: list[Any]) -> Any:
        difference = answer(weights, x) - answers
        return (difference * difference).mean((1, 2)).sum()

    for _ in range(depth):
        slopes = jax.grad(loss)(weights)
        weights = [layer - 0.1 * slope for layer, slope in zip(weights, slopes, strict=True)]
    return answer(weights, queries)


def radiance(w: Draw, inputs: Draw, batch: int) -> Any:
    """A radiance field: points along rays get a colour and a density, and are summed per ray."""
    n_rays, n_samples, width = 24, 12, 64
    starts, ways = inputs.array(batch, n_rays, 1, 3), inputs.array(batch, n_rays, 1, 3)
    along = np.linspace(0, 1, n_samples, dtype=np.float32)[:, None]
    angles = (starts + along * ways)[..., None] * 2.0 ** np.arange(4, dtype=np.float32)
    waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    read = waves.reshape(batch, n_rays, n_samples, -1)
    x = read
    for number in range(4):
        x = jnp.concatenate([x, read], axis=-1) if number == 2 else x
        x = relu(dense(w, x, width))
    # The share of light that passes each sample.
    clear = jnp.exp(-softplus(dense(w, x, 1)) / n_samples)
    colour = sigmoid(dense(w, jnp.concatenate([x, x - x.mean(2, keepdims=True)], axis=-1), 3))
    light = jnp.exp(jnp.cumsum(jnp.log(clear), axis=2)) / clear
    return (light * (1 - clear) * colour).sum(2)


def equivariant(w: Draw, inputs: Draw, batch: int) -> Any:
    """An equivariant network: messages depend on distances, and move the particles."""
    n_particles, width = 16, 24
    x, places = inputs.array(batch, n_particles, width), inputs.array(batch, n_particles, 3)
    for _ in range(3):
        apart = places[:, :, None] - places[:, None]  # (b, n, n, 3)
        distance = (apart * apart).sum(-1, keepdims=True)
        pair = dense(w, x, width)[:, :, None] + dense(w, x, width)[:, None]
        message = jax.nn.silu(dense(w, jax.nn.silu(pair + dense(w, distance, width)), width))
        pull = dense(w, jax.nn.silu(dense(w, message, width)), 1)
        places = places + (apart * pull / (1 + distance)).mean(2)
        x = x + dense(w, jnp.concatenate([x, message.sum(2)], axis=-1), width)
    return jnp.concatenate([dense(w, x, 8), places], axis=-1)
