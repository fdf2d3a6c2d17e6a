"""Dense and recurrent networks for tables, graphs, points, texts and films.

See `autotune.programs.layers` for shapes and arguments.
"""

from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.nn import gelu, relu, sigmoid

from autotune.programs.layers import (
    Draw,
    conv,
    convolve,
    dense,
    layer_norm,
    linear,
    scaled_conv,
)


def mlp(w: Draw, inputs: Draw, batch: int) -> Any:
    """Dense layers of different widths with layer normalisation."""
    x = inputs.array(batch, 256)
    for width in (512, 384, 512, 256, 384, 128):
        x = gelu(layer_norm(w, dense(w, x, width)))
    return x


def mixer(w: Draw, inputs: Draw, batch: int) -> Any:
    """Dense layers over patches and over channels in turn."""
    n_patches, width = 64, 96
    x = inputs.array(batch, 32, 32, 3).reshape(batch, 8, 4, 8, 4, 3).transpose(0, 1, 3, 2, 4, 5)
    x = dense(w, x.reshape(batch, n_patches, -1), width)
    for _ in range(3):
        y = layer_norm(w, x).swapaxes(1, 2)
        x = x + dense(w, gelu(dense(w, y, 128)), n_patches).swapaxes(1, 2)
        x = x + dense(w, gelu(dense(w, layer_norm(w, x), 192)), width)
    return dense(w, x.mean(1), 100)


def recommender(w: Draw, inputs: Draw, batch: int) -> Any:
    """Embedded ids and numbers, their pairwise products, and dense layers over all of them."""
    n_fields, width = 12, 32
    tables = [w.weight(500, width) for _ in range(n_fields)]
    ids, x = inputs.integers(500, batch, n_fields), inputs.array(batch, 16)
    for wide in (128, 64, width):
        x = relu(dense(w, x, wide))
    rows = [table[ids[:, field]] for field, table in enumerate(tables)]
    fields = jnp.stack([x, *rows], axis=1)
    products = jnp.einsum("bid,bjd->bij", fields, fields)
    x = jnp.concatenate([x, products.reshape(batch, -1)], axis=-1)
    for wide in (256, 256, 64, 1):
        x = relu(dense(w, x, wide))
    return x


def lstm(w: Draw, inputs: Draw, batch: int) -> Any:
    """Two stacked LSTM layers, and a dense layer for each step."""
    width, n_steps = 128, 12

    def run_layer(x: Any) -> Any:
        zeros = jnp.zeros((batch, width), x.dtype)
        of_inputs, from_state = dense(w, x, 4 * width), w.weight(width, 4 * width)

        def step(carry: Any, gates_of_input: Any) -> Any:
            state, cell = carry
            gates = jnp.split(gates_of_input + state @ from_state, 4, axis=-1)
            enter, forget, value, leave = gates
            cell = sigmoid(forget) * cell + sigmoid(enter) * jnp.tanh(value)
            state = sigmoid(leave) * jnp.tanh(cell)
            return (state, cell), state

        return lax.scan(step, (zeros, zeros), of_inputs)[1]

    return dense(w, run_layer(run_layer(inputs.array(n_steps, batch, width))), 64)


def gru(w: Draw, inputs: Draw, batch: int) -> Any:
    """A bidirectional GRU. The states of both directions are concatenated and averaged."""
    width, n_steps = 96, 16

    def run_way(x: Any, *, backwards: bool) -> Any:
        zeros = jnp.zeros((batch, width), x.dtype)
        of_inputs = dense(w, x, 3 * width)
        to_gates, to_value = w.weight(width, 2 * width), w.weight(width, width)

        def step(state: Any, of_input: Any) -> Any:
            of_gates, of_value = jnp.split(of_input, [2 * width], axis=-1)
            update, reset = jnp.split(sigmoid(of_gates + state @ to_gates), 2, axis=-1)
            value = jnp.tanh(of_value + (reset * state) @ to_value)
            state = update * state + (1 - update) * value
            return state, state

        return lax.scan(step, zeros, of_inputs, reverse=backwards)[1]

    x = inputs.array(n_steps, batch, 64)
    states = [run_way(x, backwards=backwards) for backwards in (False, True)]
    mean_state = jnp.concatenate(states, axis=-1).mean(0)
    return dense(w, relu(dense(w, mean_state, 256)), 64)


def conv_lstm(w: Draw, inputs: Draw, batch: int) -> Any:
    """Three stacked LSTM layers over the frames of a film, with convolutions for gates."""
    n_frames, width = 4, 8
    windows = ((3, 1, 3), (1, 3, width), (3, 1, width))  # height, width, channels read
    layers = [
        (w.weight(*window, n_in + width, 4 * width), *w.affine(4 * width))
        for *window, n_in in windows
    ]

    def step(layer: tuple[Any, Any, Any], x: Any, state: Any, cell: Any) -> tuple[Any, Any]:
        kernel, scale, shift = layer
        gates = convolve(kernel, jnp.concatenate([x, state], axis=-1)) * scale + shift
        enter, forget, value, leave = jnp.split(gates, 4, axis=-1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * jnp.tanh(value)
        return sigmoid(leave) * jnp.tanh(cell), cell

    frames = inputs.array(n_frames, batch, 16, 16, 3)
    zeros = jnp.zeros((*frames.shape[1:4], width), frames.dtype)
    layer_states = [(zeros, zeros) for _ in layers]
    for x in frames:
        reads = x
        for number, layer in enumerate(layers):
            layer_states[number] = step(layer, reads, *layer_states[number])
            reads = layer_states[number][0]
    return dense(w, jnp.concatenate([state for state, _ in layer_states], axis=-1), 3)


def graph_conv(w: Draw, inputs: Draw, batch: int) -> Any:
    """Graph convolutions over edges of four types. Each layer recomputes the edge weights."""
    n_nodes, n_types, width = 24, 4, 48
    x, adjacency = (
        inputs.array(batch, n_nodes, width),
        inputs.array(batch, n_types, n_nodes, n_nodes),
    )
    edges = (adjacency > 0.5).astype(x.dtype)
    for _ in range(4):
        along, compare = w.weight(n_types, width, width), w.weight(n_types, width, 16)
        views = jnp.einsum("bnd,tde->bnte", x, compare)
        weights = edges * sigmoid(jnp.einsum("bnte,bmte->btnm", views, views) / 4)
        weights = weights / (1 + weights.sum(-1, keepdims=True))
        messages = jnp.einsum("btnm,bmd->bntd", weights, x)
        y = jnp.einsum("bntd,tde->bne", messages, along)
        x = x + relu(layer_norm(w, y + dense(w, x, width)))
    return dense(w, jnp.concatenate([x.mean(1), x.max(1)], axis=-1), 32)


def ode(w: Draw, inputs: Draw, batch: int, depth: int = 3) -> Any:
    """A flow of points, each drawn by all others, integrated by `depth` Runge-Kutta steps."""
    n_points, width, step = 32, 48, 1 / depth
    widen, across, narrow = w.dense(width, 96), w.dense(n_points, n_points), w.dense(96, width)

    def slope(x: Any) -> Any:
        y = jnp.tanh(linear(widen, x)).swapaxes(1, 2)  # (b, d, points)
        return linear(narrow, jnp.tanh(linear(across, y)).swapaxes(1, 2))

    x = inputs.array(batch, n_points, width)
    for _ in range(depth):
        first = slope(x)
        second = slope(x + step / 2 * first)
        third = slope(x + step / 2 * second)
        last = slope(x + step * third)
        x = x + step / 6 * (first + 2 * second + 2 * third + last)
    return x


def mixture(w: Draw, inputs: Draw, batch: int) -> Any:
    """A mixture of experts. A gate sends each token to one expert, up to its capacity."""
    width, n_experts, room = 64, 6, 12
    x = inputs.array(batch, 16, width)
    for _ in range(3):
        tokens = layer_norm(w, x).reshape(-1, width)
        shares = jax.nn.softmax(tokens @ w.weight(width, n_experts), axis=-1)
        expert = jax.nn.one_hot(shares.argmax(-1), n_experts)  # (tokens, experts)
        place = ((jnp.cumsum(expert, axis=0) - 1) * expert).sum(-1).astype(int)
        dispatch = jnp.einsum("te,tr->ter", expert, jax.nn.one_hot(place, room))
        y = jnp.einsum("ter,td->erd", dispatch, tokens)
        y = jnp.einsum("erd,edf->erf", y, w.weight(n_experts, width, 128))
        y = jnp.einsum("erf,efd->erd", gelu(y), w.weight(n_experts, 128, width))
        x = x + jnp.einsum("ter,te,erd->td", dispatch, shares, y).reshape(x.shape)
    return x


def two_tower(w: Draw, inputs: Draw, batch: int) -> Any:
    """Match scores of images and texts, from comparisons of patches and words."""
    width, n_words = 48, 300
    pixels, words = inputs.array(batch, 24, 24, 3), inputs.integers(n_words, batch, 12)

    def tower(x: Any, windows: list[tuple[int, ...]]) -> Any:
        for window in windows:
            x = x + gelu(scaled_conv(w, x, width, *window))
        x = x.reshape(x.shape[0], -1, width)
        return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    patches = tower(conv(w, pixels, width, 4, 4, stride=4), [(3, 3)] * 2)
    tokens = tower(w.weight(n_words, width)[words], [(3,)] * 3)
    alike = jnp.einsum("ipd,jtd->ijpt", patches, tokens)
    fits = 10 * (alike.max(3).mean(2) + alike.max(2).mean(2))
    return jax.nn.log_softmax(fits, axis=0) + jax.nn.log_softmax(fits, axis=1)


def points(w: Draw, inputs: Draw, batch: int) -> Any:
    """Labels of points. Networks over the whole cloud compute matrices that rotate it."""
    n_points, width = 64, 32

    def read(x: Any, n_out: int) -> Any:
        return dense(w, relu(dense(w, relu(dense(w, x, 48)), 64)).max(1), n_out)

    def turn(x: Any) -> Any:
        n_axes = x.shape[-1]
        matrix = read(x, n_axes * n_axes).reshape(-1, n_axes, n_axes) / n_axes + jnp.eye(n_axes)
        return jnp.einsum("bpi,bij->bpj", x, matrix)

    features = relu(dense(w, turn(inputs.array(batch, n_points, 3)), width))
    features = turn(features)
    views = jnp.broadcast_to(read(features, 64)[:, None], (batch, n_points, 64))
    return dense(w, relu(dense(w, jnp.concatenate([features, views], axis=-1), 64)), 12)


def vae(w: Draw, inputs: Draw, batch: int) -> Any:
    """A variational autoencoder with two levels. The lower code is merged with its prior."""
    n_patches, width = 16, 64
    x = inputs.array(batch, 16, 16, 2)
    low_noise, high_noise = inputs.array(batch, n_patches, 16), inputs.array(batch, 32)

    def sample(code: Any, noise: Any) -> Any:
        mean, log_variance = code
        return mean + jnp.exp(log_variance / 2) * noise

    x = x.reshape(batch, 4, 4, 4, 4, 2).transpose(0, 1, 3, 2, 4, 5)
    x = gelu(dense(w, x.reshape(batch, n_patches, -1), width))
    join = w.dense(n_patches * 16, 128)
    mean, log_variance = jnp.split(dense(w, x, 2 * 16), 2, axis=-1)  # (b, patches, 16)
    high = jnp.tanh(linear(join, mean.swapaxes(1, 2).reshape(batch, -1)))
    high = sample(jnp.split(dense(w, high, 2 * 32), 2, axis=-1), high_noise)
    prior_code = gelu(dense(w, high, n_patches * width)).reshape(batch, n_patches, width)
    prior, log_prior = jnp.split(dense(w, prior_code, 2 * 16), 2, axis=-1)
    trust = sigmoid(log_prior - log_variance)
    low = sample((trust * mean + (1 - trust) * prior, log_variance + log_prior), low_noise)
    x = dense(w, gelu(dense(w, low, width)), 4 * 4 * 2).reshape(batch, 4, 4, 4, 4, 2)
    return sigmoid(x.transpose(0, 1, 3, 2, 4, 5).reshape(batch, 16, 16, 2))
