"""Networks of dense layers, and recurrent ones, over tables, graphs, points, texts and films.

See `data.collect.programs.layers` for shapes and what an architecture returns.
"""

from itertools import pairwise
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.nn import gelu, relu, sigmoid

from data.collect.programs.layers import Draw, Parts, Weights, convolve, dense, layer_norm, rescale


def mlp(batch: int) -> Parts:
    """Dense layers of different widths with layer normalisation."""
    draw = Draw(11)
    widths = pairwise((256, 512, 384, 512, 256, 384, 128))
    weights = [[draw.dense(i, o), draw.affine(o)] for i, o in widths]

    def network(weights: Weights, x: Any) -> Any:
        for layer, affine in weights:
            x = gelu(layer_norm(affine, dense(layer, x)))
        return x

    return network, weights, draw.array(batch, 256)


def mixer(batch: int) -> Parts:
    """Dense layers over patches and over channels in turn."""
    draw, n_patches, width = Draw(12), 64, 96
    blocks = [
        [
            *(draw.affine(width), draw.dense(n_patches, 128), draw.dense(128, n_patches)),
            *(draw.affine(width), draw.dense(width, 192), draw.dense(192, width)),
        ]
        for _ in range(3)
    ]
    weights = [draw.dense(4 * 4 * 3, width), blocks, draw.dense(width, 100)]

    def network(weights: Weights, x: Any) -> Any:
        embed, blocks, head = weights
        b, h, w, c = x.shape
        x = x.reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5)
        x = dense(embed, x.reshape(b, n_patches, -1))
        for first, over, back, second, wide, narrow in blocks:
            y = layer_norm(first, x).swapaxes(1, 2)
            x = x + dense(back, gelu(dense(over, y))).swapaxes(1, 2)
            x = x + dense(narrow, gelu(dense(wide, layer_norm(second, x))))
        return dense(head, x.mean(1))

    return network, weights, draw.array(batch, 32, 32, 3)


def recommender(batch: int) -> Parts:
    """Embedded ids and numbers, their pairwise products, and dense layers over all of it."""
    draw, n_fields, width = Draw(13), 12, 32
    tables = [draw.weight(500, width) for _ in range(n_fields)]
    bottom = [draw.dense(i, o) for i, o in pairwise((16, 128, 64, width))]
    top = [draw.dense(i, o) for i, o in pairwise((13 * 13 + width, 256, 256, 64, 1))]

    def network(weights: Weights, inputs: Any) -> Any:
        tables, bottom, top = weights
        ids, x = inputs
        for layer in bottom:
            x = relu(dense(layer, x))
        rows = [table[ids[:, field]] for field, table in enumerate(tables)]
        fields = jnp.stack([x, *rows], axis=1)
        crossed = jnp.einsum("bid,bjd->bij", fields, fields)
        x = jnp.concatenate([x, crossed.reshape(x.shape[0], -1)], axis=-1)
        for layer in top:
            x = relu(dense(layer, x))
        return x

    inputs = (draw.integers(500, batch, n_fields), draw.array(batch, 16))
    return network, [tables, bottom, top], inputs


def lstm(batch: int) -> Parts:
    """Two long short-term memories, one over the other, and a dense layer on each step."""
    draw, width, n_steps = Draw(14), 128, 12
    layers = [[draw.dense(width, 4 * width), draw.weight(width, 4 * width)] for _ in range(2)]

    def run_layer(weights: Weights, x: Any) -> Any:
        from_input, from_state = weights

        def step(carry: Any, gates_of_input: Any) -> Any:
            state, cell = carry
            gates = jnp.split(gates_of_input + state @ from_state, 4, axis=-1)
            enter, forget, value, leave = gates
            cell = sigmoid(forget) * cell + sigmoid(enter) * jnp.tanh(value)
            state = sigmoid(leave) * jnp.tanh(cell)
            return (state, cell), state

        zeros = jnp.zeros((x.shape[1], width), x.dtype)
        return lax.scan(step, (zeros, zeros), dense(from_input, x))[1]

    def network(weights: Weights, x: Any) -> Any:
        layers, head = weights
        for layer in layers:
            x = run_layer(layer, x)
        return dense(head, x)

    return network, [layers, draw.dense(width, 64)], draw.array(n_steps, batch, width)


def gru(batch: int) -> Parts:
    """A gated recurrent unit run forwards and backwards, the two joined and averaged."""
    draw, width, n_steps = Draw(15), 96, 16
    ways = [
        [draw.dense(64, 3 * width), draw.weight(width, 2 * width), draw.weight(width, width)]
        for _ in range(2)
    ]

    def run_way(weights: Weights, x: Any, *, backwards: bool) -> Any:
        from_input, to_gates, to_value = weights

        def step(state: Any, of_input: Any) -> Any:
            of_gates, of_value = jnp.split(of_input, [2 * width], axis=-1)
            update, reset = jnp.split(sigmoid(of_gates + state @ to_gates), 2, axis=-1)
            value = jnp.tanh(of_value + (reset * state) @ to_value)
            state = update * state + (1 - update) * value
            return state, state

        zeros = jnp.zeros((x.shape[1], width), x.dtype)
        return lax.scan(step, zeros, dense(from_input, x), reverse=backwards)[1]

    def network(weights: Weights, x: Any) -> Any:
        ways, (hidden, head) = weights
        both = [run_way(way, x, backwards=bool(i)) for i, way in enumerate(ways)]
        joined = jnp.concatenate(both, axis=-1).mean(0)
        return dense(head, relu(dense(hidden, joined)))

    heads = [draw.dense(2 * width, 256), draw.dense(256, 64)]
    return network, [ways, heads], draw.array(n_steps, batch, 64)


def conv_lstm(batch: int) -> Parts:
    """Three memories, gated by convolutions along rows or columns, over a film's frames in turn."""
    draw, n_frames, width = Draw(41), 4, 8
    windows = ((3, 1, 3), (1, 3, width), (3, 1, width))  # height, width, channels read
    layers = [draw.scaled(h, w, n_in + width, 4 * width) for h, w, n_in in windows]

    def step(weights: Weights, x: Any, state: Any, cell: Any) -> tuple[Any, Any]:
        kernel, affine = weights
        gates = rescale(affine, convolve(kernel, jnp.concatenate([x, state], axis=-1)))
        enter, forget, value, leave = jnp.split(gates, 4, axis=-1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * jnp.tanh(value)
        return sigmoid(leave) * jnp.tanh(cell), cell

    def network(weights: Weights, frames: Any) -> Any:
        layers, head = weights
        zeros = jnp.zeros((*frames.shape[1:4], width), frames.dtype)
        carried = [(zeros, zeros) for _ in layers]
        for x in frames:
            reads = x
            for number, layer in enumerate(layers):
                carried[number] = step(layer, reads, *carried[number])
                reads = carried[number][0]
        return dense(head, jnp.concatenate([state for state, _ in carried], axis=-1))

    return network, [layers, draw.dense(3 * width, 3)], draw.array(n_frames, batch, 16, 16, 3)


def graph_conv(batch: int) -> Parts:
    """Nodes read their neighbours along edges of four types, which are weighted anew each time."""
    draw, n_nodes, n_types, width = Draw(42), 24, 4, 48
    layers = [
        [
            *(draw.weight(n_types, width, width), draw.weight(n_types, width, 16)),
            *(draw.dense(width, width), draw.affine(width)),
        ]
        for _ in range(4)
    ]

    def network(weights: Weights, inputs: Any) -> Any:
        layers, head = weights
        x, adjacency = inputs  # (b, n, d), (b, types, n, n)
        edges = (adjacency > 0.5).astype(x.dtype)
        for along, compare, own, affine in layers:
            seen = jnp.einsum("bnd,tde->bnte", x, compare)
            weighted = edges * sigmoid(jnp.einsum("bnte,bmte->btnm", seen, seen) / 4)
            weighted = weighted / (1 + weighted.sum(-1, keepdims=True))
            messages = jnp.einsum("btnm,bmd->bntd", weighted, x)
            y = jnp.einsum("bntd,tde->bne", messages, along)
            x = x + relu(layer_norm(affine, y + dense(own, x)))
        return dense(head, jnp.concatenate([x.mean(1), x.max(1)], axis=-1))

    inputs = (draw.array(batch, n_nodes, width), draw.array(batch, n_types, n_nodes, n_nodes))
    return network, [layers, draw.dense(2 * width, 32)], inputs


def ode(batch: int) -> Parts:
    """A flow of points, each drawn by all others, integrated by three steps of Runge and Kutta."""
    draw, n_points, width = Draw(43), 32, 48
    weights = [draw.dense(width, 96), draw.dense(n_points, n_points), draw.dense(96, width)]

    def slope(weights: Weights, x: Any) -> Any:
        widen, across, narrow = weights
        y = jnp.tanh(dense(widen, x)).swapaxes(1, 2)  # (b, d, points)
        return dense(narrow, jnp.tanh(dense(across, y)).swapaxes(1, 2))

    def network(weights: Weights, x: Any) -> Any:
        step = 1 / 3
        for _ in range(3):
            first = slope(weights, x)
            second = slope(weights, x + step / 2 * first)
            third = slope(weights, x + step / 2 * second)
            last = slope(weights, x + step * third)
            x = x + step / 6 * (first + 2 * second + 2 * third + last)
        return x

    return network, weights, draw.array(batch, n_points, width)


def mixture(batch: int) -> Parts:
    """Tokens are sent to the expert that a gate picks, as far as it has room, and come back."""
    draw, width, n_experts, room = Draw(44), 64, 6, 12
    blocks = [
        [
            *(draw.affine(width), draw.weight(width, n_experts)),
            *(draw.weight(n_experts, width, 128), draw.weight(n_experts, 128, width)),
        ]
        for _ in range(3)
    ]

    def network(weights: Weights, x: Any) -> Any:
        for affine, gate, widen, narrow in weights:
            tokens = layer_norm(affine, x).reshape(-1, width)
            shares = jax.nn.softmax(tokens @ gate, axis=-1)
            picked = jax.nn.one_hot(shares.argmax(-1), n_experts)  # (tokens, experts)
            place = ((jnp.cumsum(picked, axis=0) - 1) * picked).sum(-1).astype(int)
            sent = jnp.einsum("te,tr->ter", picked, jax.nn.one_hot(place, room))
            y = jnp.einsum("ter,td->erd", sent, tokens)
            y = jnp.einsum("erd,edf->erf", y, widen)
            y = jnp.einsum("erf,efd->erd", gelu(y), narrow)
            x = x + jnp.einsum("ter,te,erd->td", sent, shares, y).reshape(x.shape)
        return x

    return network, blocks, draw.array(batch, 16, width)


def two_tower(batch: int) -> Parts:
    """Images and texts are compared patch by word; how well each image fits each text."""
    draw, width, n_words = Draw(45), 48, 300
    image = [draw.weight(4, 4, 3, width), *(draw.scaled(3, 3, width, width) for _ in range(2))]
    text = [draw.weight(n_words, width), *(draw.scaled(3, width, width) for _ in range(3))]

    def tower(layers: Weights, x: Any) -> Any:
        for kernel, affine in layers:
            x = x + gelu(rescale(affine, convolve(kernel, x)))
        x = x.reshape(x.shape[0], -1, width)
        return x * lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)

    def network(weights: Weights, inputs: Any) -> Any:
        (to_patches, *image), (table, *text) = weights
        pixels, words = inputs
        patches = tower(image, convolve(to_patches, pixels, stride=4))
        tokens = tower(text, table[words])
        alike = jnp.einsum("ipd,jtd->ijpt", patches, tokens)
        fits = 10 * (alike.max(3).mean(2) + alike.max(2).mean(2))
        return jax.nn.log_softmax(fits, axis=0) + jax.nn.log_softmax(fits, axis=1)

    inputs = (draw.array(batch, 24, 24, 3), draw.integers(n_words, batch, 12))
    return network, [image, text], inputs


def points(batch: int) -> Parts:
    """Clouds of points, turned by matrices that are read off them, and a label for each point."""
    draw, n_points, width = Draw(46), 64, 32

    def pooled(n_in: int, n_out: int) -> Weights:
        return [draw.dense(i, o) for i, o in pairwise((n_in, 48, 64, n_out))]

    def read(weights: Weights, x: Any) -> Any:
        """Pool (b, points, d) over the points between dense layers: (b, d out)."""
        first, second, last = weights
        return dense(last, relu(dense(second, relu(dense(first, x)))).max(1))

    def turn(weights: Weights, x: Any) -> Any:
        n_axes = x.shape[-1]
        matrix = read(weights, x).reshape(-1, n_axes, n_axes) / n_axes + jnp.eye(n_axes)
        return jnp.einsum("bpi,bij->bpj", x, matrix)

    def network(weights: Weights, x: Any) -> Any:
        turn_points, embed, turn_features, whole, (merge, head) = weights
        features = relu(dense(embed, turn(turn_points, x)))
        features = turn(turn_features, features)
        seen = jnp.broadcast_to(read(whole, features)[:, None], (batch, n_points, 64))
        return dense(head, relu(dense(merge, jnp.concatenate([features, seen], axis=-1))))

    turns = [pooled(3, 9), draw.dense(3, width), pooled(width, width * width)]
    heads = [draw.dense(width + 64, 64), draw.dense(64, 12)]
    return network, [*turns, pooled(width, 64), heads], draw.array(batch, n_points, 3)


def vae(batch: int) -> Parts:
    """Two levels of drawn codes; the lower is merged with what the upper expects."""
    draw, n_patches, width = Draw(47), 16, 64
    up = [draw.dense(4 * 4 * 2, width), draw.dense(n_patches * 16, 128)]
    codes = [draw.dense(width, 2 * 16), draw.dense(128, 2 * 32)]
    down = [draw.dense(32, n_patches * width), draw.dense(width, 2 * 16)]
    paint = [draw.dense(16, width), draw.dense(width, 4 * 4 * 2)]

    def sample(code: Any, noise: Any) -> Any:
        mean, log_variance = code
        return mean + jnp.exp(log_variance / 2) * noise

    def network(weights: Weights, inputs: Any) -> Any:
        (embed, join), (to_low, to_high), (spread, expect), (first, last) = weights
        x, low_noise, high_noise = inputs
        b, h, w, c = x.shape
        x = x.reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5)
        x = gelu(dense(embed, x.reshape(b, n_patches, -1)))
        mean, log_variance = jnp.split(dense(to_low, x), 2, axis=-1)  # (b, patches, 16)
        high = jnp.tanh(dense(join, mean.swapaxes(1, 2).reshape(b, -1)))
        high = sample(jnp.split(dense(to_high, high), 2, axis=-1), high_noise)
        expected = gelu(dense(spread, high)).reshape(b, n_patches, width)
        prior, log_prior = jnp.split(dense(expect, expected), 2, axis=-1)
        trust = sigmoid(log_prior - log_variance)
        low = sample((trust * mean + (1 - trust) * prior, log_variance + log_prior), low_noise)
        x = dense(last, gelu(dense(first, low))).reshape(b, h // 4, w // 4, 4, 4, c)
        return sigmoid(x.transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, c))

    noise = (draw.array(batch, n_patches, 16), draw.array(batch, 32))
    return network, [up, codes, down, paint], (draw.array(batch, 16, 16, 2), *noise)
