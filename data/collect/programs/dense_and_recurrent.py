"""Networks of dense layers and recurrent ones: a network, its weights and an example input each."""

from typing import Any

from data.collect.programs.layers import (
    Draw,
    Network,
    Weights,
    dense,
    layer_norm,
    pairs,
)

Parts = tuple[Network, Weights, Any]


def mlp(batch: int) -> Parts:
    """Dense layers of different widths with layer normalisation."""
    import jax

    draw = Draw(11)
    widths = pairs((256, 512, 384, 512, 256, 384, 128))
    weights = [[draw.dense(i, o), draw.affine(o)] for i, o in widths]

    def network(weights: Weights, x: Any) -> Any:
        for layer, affine in weights:
            x = jax.nn.gelu(layer_norm(affine, dense(layer, x)))
        return x

    return network, weights, draw.array(batch, 256)


def mixer(batch: int) -> Parts:
    """Dense layers over patches and over channels in turn."""
    import jax

    draw = Draw(12)
    n_patches, width = 64, 96
    blocks = [
        [
            draw.affine(width),
            draw.dense(n_patches, 128),
            draw.dense(128, n_patches),
            draw.affine(width),
            draw.dense(width, 192),
            draw.dense(192, width),
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
            x = x + dense(back, jax.nn.gelu(dense(over, y))).swapaxes(1, 2)
            x = x + dense(narrow, jax.nn.gelu(dense(wide, layer_norm(second, x))))
        return dense(head, x.mean(1))

    return network, weights, draw.array(batch, 32, 32, 3)


def recommender(batch: int) -> Parts:
    """Embedded ids and numbers, their pairwise products, and dense layers over all of it."""
    import jax
    import jax.numpy as jnp

    draw = Draw(13)
    n_fields, width = 12, 32
    tables = [draw.weight(500, width) for _ in range(n_fields)]
    bottom = [draw.dense(i, o) for i, o in pairs((16, 128, 64, width))]
    top = [draw.dense(i, o) for i, o in pairs((13 * 13 + width, 256, 256, 64, 1))]

    def network(weights: Weights, inputs: Any) -> Any:
        tables, bottom, top = weights
        ids, x = inputs
        for layer in bottom:
            x = jax.nn.relu(dense(layer, x))
        rows = [table[ids[:, field]] for field, table in enumerate(tables)]
        fields = jnp.stack([x, *rows], axis=1)
        crossed = jnp.einsum("bid,bjd->bij", fields, fields)
        x = jnp.concatenate([x, crossed.reshape(x.shape[0], -1)], axis=-1)
        for layer in top:
            x = jax.nn.relu(dense(layer, x))
        return x

    inputs = (draw.integers(500, batch, n_fields), draw.array(batch, 16))
    return network, [tables, bottom, top], inputs


def lstm(batch: int) -> Parts:
    """Two long short-term memories, one over the other, and a dense layer on each step."""
    import jax
    import jax.numpy as jnp

    draw = Draw(14)
    width, n_steps = 128, 12
    layers = [[draw.dense(width, 4 * width), draw.weight(width, 4 * width)] for _ in range(2)]

    def run_layer(weights: Weights, x: Any) -> Any:
        from_input, from_state = weights

        def step(carry: Any, gates_of_input: Any) -> Any:
            state, cell = carry
            gates = jnp.split(gates_of_input + state @ from_state, 4, axis=-1)
            enter, forget, value, leave = gates
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(value)
            state = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (state, cell), state

        zeros = jnp.zeros((x.shape[1], width), x.dtype)
        return jax.lax.scan(step, (zeros, zeros), dense(from_input, x))[1]

    def network(weights: Weights, x: Any) -> Any:
        layers, head = weights
        for layer in layers:
            x = run_layer(layer, x)
        return dense(head, x)

    return network, [layers, draw.dense(width, 64)], draw.array(n_steps, batch, width)


def gru(batch: int) -> Parts:
    """A gated recurrent unit run forwards and backwards, the two joined and averaged."""
    import jax
    import jax.numpy as jnp

    draw = Draw(15)
    width, n_steps = 96, 16
    ways = [
        [draw.dense(64, 3 * width), draw.weight(width, 2 * width), draw.weight(width, width)]
        for _ in range(2)
    ]

    def run_way(weights: Weights, x: Any, *, backwards: bool) -> Any:
        from_input, to_gates, to_value = weights

        def step(state: Any, of_input: Any) -> Any:
            of_gates, of_value = jnp.split(of_input, [2 * width], axis=-1)
            update, reset = jnp.split(jax.nn.sigmoid(of_gates + state @ to_gates), 2, axis=-1)
            value = jnp.tanh(of_value + (reset * state) @ to_value)
            state = update * state + (1 - update) * value
            return state, state

        zeros = jnp.zeros((x.shape[1], width), x.dtype)
        return jax.lax.scan(step, zeros, dense(from_input, x), reverse=backwards)[1]

    def network(weights: Weights, x: Any) -> Any:
        ways, (hidden, head) = weights
        both = [run_way(way, x, backwards=bool(i)) for i, way in enumerate(ways)]
        joined = jnp.concatenate(both, axis=-1).mean(0)
        return dense(head, jax.nn.relu(dense(hidden, joined)))

    heads = [draw.dense(2 * width, 256), draw.dense(256, 64)]
    return network, [ways, heads], draw.array(n_steps, batch, 64)
