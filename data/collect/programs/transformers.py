"""Transformers, on (b, s, d); see `data.collect.programs.layers` for what one returns."""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.nn import gelu

from data.collect.programs.layers import Draw, Parts, Weights, convolve, dense, layer_norm, rescale


def _split_heads(x: Any, n_heads: int) -> Any:
    b, s, d = x.shape
    return x.reshape(b, s, n_heads, d // n_heads)


def _attend(weights: Weights, x: Any, context: Any, heads: int, *, is_causal: bool = False) -> Any:
    """Attend from x (b, s, d) to context (b, t, d) with several heads."""
    to_query, to_key, to_value, to_output = weights
    query = _split_heads(dense(to_query, x), heads)
    key = _split_heads(dense(to_key, context), heads)
    value = _split_heads(dense(to_value, context), heads)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    if is_causal:
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(allowed, scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
    return dense(to_output, mixed.reshape(x.shape))


def _attention_weights(draw: Draw, width: int) -> Weights:
    return [draw.dense(width, width) for _ in range(4)]


def _feed_forward(weights: Weights, x: Any) -> Any:
    widen, narrow = weights
    return dense(narrow, gelu(dense(widen, x)))


def _feed_forward_weights(draw: Draw, width: int, factor: int = 4) -> Weights:
    return [draw.dense(width, factor * width), draw.dense(factor * width, width)]


def _block_weights(draw: Draw, width: int) -> Weights:
    return [
        *(draw.affine(width), _attention_weights(draw, width)),
        *(draw.affine(width), _feed_forward_weights(draw, width)),
    ]


def _block(weights: Weights, x: Any, heads: int, *, is_causal: bool = False) -> Any:
    first, attention, second, forward = weights
    y = layer_norm(first, x)
    x = x + _attend(attention, y, y, heads, is_causal=is_causal)
    return x + _feed_forward(forward, layer_norm(second, x))


def attention(batch: int) -> Parts:
    """One attention block without normalisation."""
    draw, width = Draw(21), 192

    def network(weights: Weights, x: Any) -> Any:
        own, forward = weights
        x = x + _attend(own, x, x, 6)
        return x + _feed_forward(forward, x)

    weights = [_attention_weights(draw, width), _feed_forward_weights(draw, width, 2)]
    return network, weights, draw.array(batch, 32, width)


def encoder(batch: int, depth: int) -> Parts:
    """An encoder of `depth` blocks and a head on the first token."""
    draw, width = Draw(22), 128

    def network(weights: Weights, x: Any) -> Any:
        blocks, head = weights
        for block in blocks:
            x = _block(block, x, 4)
        return dense(head, x[:, 0])

    blocks = [_block_weights(draw, width) for _ in range(depth)]
    return network, [blocks, draw.dense(width, 32)], draw.array(batch, 32, width)


def decoder(batch: int, depth: int) -> Parts:
    """Causal attention, attention to an encoded text, and feed forward, `depth` times."""
    draw, width = Draw(23), 96

    def network(weights: Weights, inputs: Any) -> Any:
        x, context = inputs
        for block, between, across in weights:
            x = x + _attend(across, layer_norm(between, x), context, 3)
            x = _block(block, x, 3, is_causal=True)
        return x

    weights = [
        [_block_weights(draw, width), draw.affine(width), _attention_weights(draw, width)]
        for _ in range(depth)
    ]
    return network, weights, (draw.array(batch, 24, width), draw.array(batch, 48, width))


def causal(batch: int, depth: int) -> Parts:
    """A language model: embedded tokens, causal blocks side by side, tied output embedding."""
    draw, width, n_words = Draw(24), 128, 512

    def network(weights: Weights, tokens: Any) -> Any:
        table, places, blocks = weights
        x = table[tokens] + places
        for affine, own, forward in blocks:
            y = layer_norm(affine, x)
            x = x + _attend(own, y, y, 4, is_causal=True) + _feed_forward(forward, y)
        return x @ table.T

    blocks = [
        [draw.affine(width), _attention_weights(draw, width), _feed_forward_weights(draw, width)]
        for _ in range(depth)
    ]
    weights = [draw.array(n_words, width), draw.array(32, width), blocks]
    return network, weights, draw.integers(n_words, batch, 32)


def shared(batch: int, depth: int) -> Parts:
    """One block whose weights serve `depth` times, in a loop that the compiler keeps."""
    draw, width = Draw(25), 128

    def network(weights: Weights, x: Any) -> Any:
        embed, block, head = weights

        def again(x: Any, _: None) -> tuple[Any, None]:
            return _block(block, x, 4), None

        x, _ = lax.scan(again, dense(embed, x), None, length=depth)
        return dense(head, x)

    weights = [draw.dense(64, width), _block_weights(draw, width), draw.dense(width, 64)]
    return network, weights, draw.array(batch, 24, 64)


def linear_attention(batch: int, depth: int) -> Parts:
    """Attention without softmax: keys and values are summed up before queries read them."""
    draw, width = Draw(26), 128

    def mix(weights: Weights, x: Any) -> Any:
        query, key, value = (_split_heads(dense(w, x), 4) for w in weights[:3])
        query, key = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        memory = jnp.einsum("bshd,bshe->bhde", key, value)
        scale = jnp.einsum("bshd,bhd->bsh", query, key.sum(1))
        mixed = jnp.einsum("bshd,bhde->bshe", query, memory) / scale[..., None]
        return dense(weights[3], mixed.reshape(x.shape))

    def network(weights: Weights, x: Any) -> Any:
        for first, attention, second, forward in weights:
            x = x + mix(attention, layer_norm(first, x))
            x = x + _feed_forward(forward, layer_norm(second, x))
        return x

    weights = [_block_weights(draw, width) for _ in range(depth)]
    return network, weights, draw.array(batch, 48, width)


def _rotate(x: Any) -> Any:
    """Turn the halves of each head (b, s, h, d) by angles that grow with the position."""
    steps, half = x.shape[1], x.shape[3] // 2
    angle = np.outer(np.arange(steps), 1e4 ** (-np.arange(half) / half)).astype(np.float32)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]  # (s, 1, d / 2)
    one, two = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)


def _rms_norm(scale: Any, x: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def rotary(batch: int, depth: int) -> Parts:
    """Root mean squares, turned positions, two keys for eight queries, gated feed forward."""
    draw, width, heads, shared_by = Draw(51), 128, 8, 4
    n_key = width // shared_by
    blocks = [
        [
            *(1 + 0.1 * draw.array(width), draw.weight(width, width + 2 * n_key)),
            *(draw.weight(width, width), 1 + 0.1 * draw.array(width)),
            *(draw.weight(width, 512), draw.weight(256, width)),
        ]
        for _ in range(depth)
    ]

    def attend(x: Any) -> Any:
        b, s, _ = x.shape
        query, key, value = jnp.split(x, [width, width + n_key], axis=-1)
        query = _rotate(_split_heads(query, heads)).reshape(b, s, heads // shared_by, shared_by, -1)
        key = _rotate(_split_heads(key, heads // shared_by))
        scores = jnp.einsum("bqghd,bkgd->bghqk", query, key) / query.shape[-1] ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
        value = _split_heads(value, heads // shared_by)
        mixed = jnp.einsum("bghqk,bkgd->bqghd", jax.nn.softmax(scores, axis=-1), value)
        return mixed.reshape(b, s, width)

    def network(weights: Weights, x: Any) -> Any:
        for first, to_all, out, second, widen, narrow in weights:
            x = x + attend(_rms_norm(first, x) @ to_all) @ out
            gate, y = jnp.split(_rms_norm(second, x) @ widen, 2, axis=-1)
            x = x + (jax.nn.silu(gate) * y) @ narrow
        return x

    return network, blocks, draw.array(batch, 24, width)


def conformer(batch: int, depth: int) -> Parts:
    """Attention and a gated convolution over time, between two halves of a feed forward."""
    draw, width, window = Draw(52), 96, 5
    blocks = [
        [
            *(draw.affine(width), _feed_forward_weights(draw, width, 2)),
            *(draw.affine(width), _attention_weights(draw, width)),
            *(draw.affine(width), draw.dense(width, 2 * width)),
            *(draw.weight(window, 1, width), draw.affine(width), draw.dense(width, width)),
            *(draw.affine(width), _feed_forward_weights(draw, width, 2), draw.affine(width)),
        ]
        for _ in range(depth)
    ]

    def network(weights: Weights, x: Any) -> Any:
        for block in weights:
            (before, first, of_attention, attention, of_window) = block[:5]
            (widen, window, affine, narrow, after, second, last) = block[5:]
            x = x + 0.5 * _feed_forward(first, layer_norm(before, x))
            y = layer_norm(of_attention, x)
            x = x + _attend(attention, y, y, 4)
            y = jax.nn.glu(dense(widen, layer_norm(of_window, x)))
            y = rescale(affine, convolve(window, y, groups=width))
            x = x + dense(narrow, jax.nn.silu(y))
            x = x + 0.5 * _feed_forward(second, layer_norm(after, x))
            x = layer_norm(last, x)
        return x

    return network, blocks, draw.array(batch, 32, width)


def local_attention(batch: int) -> Parts:
    """Attention within windows of the text and to the window before each."""
    draw, width, heads, size = Draw(53), 96, 4, 8
    blocks = [_block_weights(draw, width) for _ in range(3)]

    def attend(weights: Weights, x: Any) -> Any:
        b, s, d = x.shape
        windows = (b, s // size, size, heads, d // heads)
        query, key, value = (dense(w, x).reshape(windows) for w in weights[:3])
        key, value = (
            jnp.concatenate([jnp.pad(y, [(0, 0), (1, 0), *[(0, 0)] * 3])[:, :-1], y], axis=2)
            for y in (key, value)
        )
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", query, key) / query.shape[-1] ** 0.5
        allowed = np.tri(size, 2 * size, size, bool)
        share = jax.nn.softmax(jnp.where(allowed, scores, -1e9), axis=-1)
        return dense(weights[3], jnp.einsum("bnhqk,bnkhd->bnqhd", share, value).reshape(b, s, d))

    def network(weights: Weights, x: Any) -> Any:
        for first, attention, second, forward in weights:
            x = x + attend(attention, layer_norm(first, x))
            x = x + _feed_forward(forward, layer_norm(second, x))
        return x

    return network, blocks, draw.array(batch, 64, width)


def gated_mlp(batch: int) -> Parts:
    """No attention: half of the features gate the others by a dense layer over the positions."""
    draw, width, inner, heads, n_steps = Draw(54), 96, 192, 4, 48
    blocks = [
        [
            *(draw.affine(width), draw.dense(width, 2 * inner), draw.affine(inner)),
            *(draw.weight(heads, n_steps, n_steps), draw.dense(inner, width)),
        ]
        for _ in range(4)
    ]

    def network(weights: Weights, x: Any) -> Any:
        for first, widen, second, across, narrow in weights:
            kept, gate = jnp.split(gelu(dense(widen, layer_norm(first, x))), 2, axis=-1)
            gate = _split_heads(layer_norm(second, gate), heads)
            gate = 1 + jnp.einsum("hts,bshd->bthd", across, gate)
            x = x + dense(narrow, kept * gate.reshape(kept.shape))
        return x

    return network, blocks, draw.array(batch, n_steps, width)


def perceiver(batch: int) -> Parts:
    """A few latents read a long input twice, with blocks of their own between, and are read."""
    draw, width, n_latents = Draw(55), 96, 12
    rounds = [
        [draw.affine(width), _attention_weights(draw, width), _block_weights(draw, width)]
        for _ in range(2)
    ]
    answers = [draw.array(20, width), _attention_weights(draw, width), draw.dense(width, 32)]

    def network(weights: Weights, x: Any) -> Any:
        embed, latents, rounds, (questions, reading, head) = weights
        x = dense(embed, x)
        z = jnp.broadcast_to(latents, (batch, n_latents, width))
        for affine, across, block in rounds:
            z = z + _attend(across, layer_norm(affine, z), x, 2)
            z = _block(block, z, 4)
        questions = jnp.broadcast_to(questions, (batch, *questions.shape))
        return dense(head, _attend(reading, questions, z, 3))

    weights = [draw.dense(24, width), draw.array(n_latents, width), rounds, answers]
    return network, weights, draw.array(batch, 128, 24)


def funnel(batch: int) -> Parts:
    """Pooled by halves between blocks, each of which reads the longer text, and spread again."""
    draw, width = Draw(56), 96
    down = [_block_weights(draw, width) for _ in range(3)]
    up = [draw.dense(width, width), _block_weights(draw, width)]

    def halve(x: Any) -> Any:
        b, s, d = x.shape
        return x.reshape(b, s // 2, 2, d).mean(2)

    def network(weights: Weights, x: Any) -> Any:
        down, (spread, last) = weights
        start = x
        for first, attention, second, forward in down:
            y = layer_norm(first, x)
            x = halve(x) + _attend(attention, halve(y), y, 4)
            x = x + _feed_forward(forward, layer_norm(second, x))
        x = dense(spread, x).repeat(2 ** len(down), axis=1) + start
        return _block(last, x, 4)

    return network, [down, up], draw.array(batch, 64, width)


def talking_heads(batch: int) -> Parts:
    """Attention whose heads are mixed with each other before the softmax and after it."""
    draw, width, heads = Draw(57), 96, 6
    blocks = [
        [_block_weights(draw, width), draw.weight(heads, 8), draw.weight(8, heads)]
        for _ in range(3)
    ]

    def attend(weights: Weights, before: Any, after: Any, x: Any) -> Any:
        query, key, value = (_split_heads(dense(w, x), heads) for w in weights[:3])
        scores = jnp.einsum("bqhd,bkhd,hg->bqkg", query, key, before)
        share = jax.nn.softmax(scores / query.shape[-1] ** 0.5, axis=2) @ after
        return dense(weights[3], jnp.einsum("bqkh,bkhd->bqhd", share, value).reshape(x.shape))

    def network(weights: Weights, x: Any) -> Any:
        for (first, attention, second, forward), before, after in weights:
            x = x + attend(attention, before, after, layer_norm(first, x))
            x = x + _feed_forward(forward, layer_norm(second, x))
        return x

    return network, blocks, draw.array(batch, 24, width)


def fourier(batch: int) -> Parts:
    """Positions are mixed by filters of their frequencies, which matrices turn to and back."""
    draw, width, n_steps = Draw(58), 96, 48
    turns = 2 * np.pi * np.outer(np.arange(n_steps), np.arange(n_steps)) / n_steps
    matrices = [(wave(turns) / n_steps**0.5).astype(np.float32) for wave in (np.cos, np.sin)]
    blocks = [
        [
            *(draw.array(n_steps, width), draw.array(n_steps, width), draw.affine(width)),
            *(draw.dense(width, width), draw.affine(width), _feed_forward_weights(draw, width)),
        ]
        for _ in range(3)
    ]

    def network(weights: Weights, x: Any) -> Any:
        (cos, sin), blocks = weights
        for real, imaginary, first, mix, second, forward in blocks:
            y = layer_norm(first, x)
            even, odd = jnp.einsum("fs,bsd->bfd", cos, y), jnp.einsum("fs,bsd->bfd", sin, y)
            even, odd = even * real + odd * imaginary, odd * real - even * imaginary
            y = jnp.einsum("sf,bfd->bsd", cos, even) + jnp.einsum("sf,bfd->bsd", sin, odd)
            x = x + dense(mix, y)
            x = x + _feed_forward(forward, layer_norm(second, x))
        return x

    return network, [matrices, blocks], draw.array(batch, n_steps, width)


def seq2seq(batch: int, depth: int) -> Parts:
    """A text is encoded, the other decoded, both with biases for how far apart tokens are."""
    draw, width, heads, n_words, reach = Draw(59), 96, 4, 400, 8

    def attend(weights: Weights, x: Any, context: Any, bias: Any) -> Any:
        query = _split_heads(dense(weights[0], x), heads)
        key, value = (_split_heads(dense(w, context), heads) for w in weights[1:3])
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
        return dense(weights[3], mixed.reshape(x.shape))

    def near(biases: Any, n_steps: int) -> Any:
        apart = np.subtract.outer(np.arange(n_steps), np.arange(n_steps))
        return biases[np.clip(apart, -reach, reach) + reach].transpose(2, 0, 1)  # (h, s, s)

    def network(weights: Weights, inputs: Any) -> Any:
        table, (both_ways, backwards), encoder, decoder = weights
        source, target = (table[tokens] for tokens in inputs)
        bias = near(both_ways, source.shape[1])
        for first, own, second, forward in encoder:
            y = layer_norm(first, source)
            source = source + attend(own, y, y, bias)
            source = source + _feed_forward(forward, layer_norm(second, source))
        n_steps = target.shape[1]
        bias = near(backwards, n_steps) + np.triu(np.full((n_steps, n_steps), -1e9, np.float32), 1)
        for (first, own, second, forward), between, across in decoder:
            y = layer_norm(first, target)
            target = target + attend(own, y, y, bias)
            target = target + attend(across, layer_norm(between, target), source, 0.0)
            target = target + _feed_forward(forward, layer_norm(second, target))
        return target @ table.T

    encoder = [_block_weights(draw, width) for _ in range(depth)]
    decoder = [
        [_block_weights(draw, width), draw.affine(width), _attention_weights(draw, width)]
        for _ in range(depth)
    ]
    biases = [draw.array(2 * reach + 1, heads) for _ in range(2)]
    weights = [draw.weight(n_words, width), biases, encoder, decoder]
    return network, weights, (draw.integers(n_words, batch, 32), draw.integers(n_words, batch, 16))
