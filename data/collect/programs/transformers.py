"""Transformers: each function returns a network, its weights and an example input (b, s, d)."""

from typing import Any

from data.collect.programs.layers import Draw, Network, Weights, dense, layer_norm

Parts = tuple[Network, Weights, Any]


def split_heads(x: Any, n_heads: int) -> Any:
    """Reshape (b, s, d) to (b, s, heads, d / heads)."""
    b, s, d = x.shape
    return x.reshape(b, s, n_heads, d // n_heads)


def attend(weights: Weights, x: Any, context: Any, *, n_heads: int, is_causal: bool = False) -> Any:
    """Attend from x (b, s, d) to context (b, t, d) with several heads."""
    import jax
    import jax.numpy as jnp

    to_query, to_key, to_value, to_output = weights
    query = split_heads(dense(to_query, x), n_heads)
    key = split_heads(dense(to_key, context), n_heads)
    value = split_heads(dense(to_value, context), n_heads)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    if is_causal:
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(allowed, scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
    return dense(to_output, mixed.reshape(x.shape))


def attention_weights(draw: Draw, width: int) -> Weights:
    """Return the weights of `attend`."""
    return [draw.dense(width, width) for _ in range(4)]


def feed_forward(weights: Weights, x: Any) -> Any:
    """Widen, bend and narrow."""
    import jax

    widen, narrow = weights
    return dense(narrow, jax.nn.gelu(dense(widen, x)))


def feed_forward_weights(draw: Draw, width: int, factor: int = 4) -> Weights:
    """Return the weights of `feed_forward`."""
    return [draw.dense(width, factor * width), draw.dense(factor * width, width)]


def block_weights(draw: Draw, width: int) -> Weights:
    """Return the weights of `encoder_block`."""
    return [
        *(draw.affine(width), attention_weights(draw, width)),
        *(draw.affine(width), feed_forward_weights(draw, width)),
    ]


def encoder_block(weights: Weights, x: Any, *, n_heads: int, is_causal: bool = False) -> Any:
    """Attend to itself, then feed forward, each normalised before and added to its input."""
    first, attention, second, forward = weights
    y = layer_norm(first, x)
    x = x + attend(attention, y, y, n_heads=n_heads, is_causal=is_causal)
    return x + feed_forward(forward, layer_norm(second, x))


def attention(batch: int) -> Parts:
    """One attention block without normalisation."""
    draw = Draw(21)
    width = 192

    def network(weights: Weights, x: Any) -> Any:
        own, forward = weights
        x = x + attend(own, x, x, n_heads=6)
        return x + feed_forward(forward, x)

    weights = [attention_weights(draw, width), feed_forward_weights(draw, width, 2)]
    return network, weights, draw.array(batch, 32, width)


def encoder(batch: int, depth: int) -> Parts:
    """An encoder of `depth` blocks and a head on the first token."""
    draw = Draw(22)
    width = 128

    def network(weights: Weights, x: Any) -> Any:
        blocks, head = weights
        for block in blocks:
            x = encoder_block(block, x, n_heads=4)
        return dense(head, x[:, 0])

    blocks = [block_weights(draw, width) for _ in range(depth)]
    return network, [blocks, draw.dense(width, 32)], draw.array(batch, 32, width)


def decoder(batch: int, depth: int) -> Parts:
    """Causal attention, attention to an encoded text, and feed forward, `depth` times."""
    draw = Draw(23)
    width = 96

    def network(weights: Weights, inputs: Any) -> Any:
        x, context = inputs
        for block, between, across in weights:
            x = x + attend(across, layer_norm(between, x), context, n_heads=3)
            x = encoder_block(block, x, n_heads=3, is_causal=True)
        return x

    weights = [
        [block_weights(draw, width), draw.affine(width), attention_weights(draw, width)]
        for _ in range(depth)
    ]
    return network, weights, (draw.array(batch, 24, width), draw.array(batch, 48, width))


def causal(batch: int, depth: int) -> Parts:
    """A language model: embedded tokens, causal blocks side by side, tied output embedding."""
    draw = Draw(24)
    width, n_words = 128, 512

    def network(weights: Weights, tokens: Any) -> Any:
        table, places, blocks = weights
        x = table[tokens] + places
        for affine, own, forward in blocks:
            y = layer_norm(affine, x)
            x = x + attend(own, y, y, n_heads=4, is_causal=True) + feed_forward(forward, y)
        return x @ table.T

    blocks = [
        [draw.affine(width), attention_weights(draw, width), feed_forward_weights(draw, width)]
        for _ in range(depth)
    ]
    weights = [draw.array(n_words, width), draw.array(32, width), blocks]
    return network, weights, draw.integers(n_words, batch, 32)


def shared(batch: int, depth: int) -> Parts:
    """One block whose weights serve `depth` times, in a loop that the compiler keeps."""
    import jax

    draw = Draw(25)
    width = 128

    def network(weights: Weights, x: Any) -> Any:
        embed, block, head = weights

        def again(x: Any, _: None) -> tuple[Any, None]:
            return encoder_block(block, x, n_heads=4), None

        x, _ = jax.lax.scan(again, dense(embed, x), None, length=depth)
        return dense(head, x)

    weights = [draw.dense(64, width), block_weights(draw, width), draw.dense(width, 64)]
    return network, weights, draw.array(batch, 24, 64)


def linear_attention(batch: int, depth: int) -> Parts:
    """Attention without softmax: keys and values are summed up before queries read them."""
    import jax
    import jax.numpy as jnp

    draw = Draw(26)
    width, n_heads = 128, 4

    def mix(weights: Weights, x: Any) -> Any:
        query, key, value = (split_heads(dense(w, x), n_heads) for w in weights[:3])
        query, key = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        memory = jnp.einsum("bshd,bshe->bhde", key, value)
        scale = jnp.einsum("bshd,bhd->bsh", query, key.sum(1))
        mixed = jnp.einsum("bshd,bhde->bshe", query, memory) / scale[..., None]
        return dense(weights[3], mixed.reshape(x.shape))

    def network(weights: Weights, x: Any) -> Any:
        for first, attention, second, forward in weights:
            x = x + mix(attention, layer_norm(first, x))
            x = x + feed_forward(forward, layer_norm(second, x))
        return x

    weights = [block_weights(draw, width) for _ in range(depth)]
    return network, weights, draw.array(batch, 48, width)
