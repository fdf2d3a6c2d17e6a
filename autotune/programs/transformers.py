"""Transformers, (b, s, d). See `autotune.programs.layers` for shapes and arguments."""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.nn import gelu

from autotune.programs.layers import Draw, conv, dense, layer_norm, rescale


def split_heads(x: Any, n_heads: int) -> Any:
    b, s, d = x.shape
    return x.reshape(b, s, n_heads, d // n_heads)


def attend(w: Draw, x: Any, context: Any, heads: int, *, is_causal: bool = False) -> Any:
    """Apply multi-head attention of queries (b, s, d) to a context (b, t, d).

    If it is causal, a token reads only tokens up to its own position.
    """
    width = x.shape[-1]
    query = split_heads(dense(w, x, width), heads)
    key = split_heads(dense(w, context, width), heads)
    value = split_heads(dense(w, context, width), heads)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(mask, scores, -1e9)
    values = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
    return dense(w, values.reshape(x.shape), width)


def feed_forward(w: Draw, x: Any, factor: int = 4) -> Any:
    width = x.shape[-1]
    return dense(w, gelu(dense(w, x, factor * width)), width)


def block(w: Draw, x: Any, heads: int, *, is_causal: bool = False) -> Any:
    y = layer_norm(w, x)
    x = x + attend(w, y, y, heads, is_causal=is_causal)
    return x + feed_forward(w, layer_norm(w, x))


def attention(w: Draw, inputs: Draw, batch: int) -> Any:
    """One attention block without normalisation."""
    x = inputs.array(batch, 32, 192)
    x = x + attend(w, x, x, 6)
    return x + feed_forward(w, x, 2)


def encoder(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """An encoder, and a head on the first token."""
    x = inputs.array(batch, 32, 128)
    for _ in range(depth):
        x = block(w, x, 4)
    return dense(w, x[:, 0], 32)


def decoder(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """Decoder blocks: attention to an encoded text, causal attention and feed-forward layers."""
    x, context = inputs.array(batch, 24, 96), inputs.array(batch, 48, 96)
    for _ in range(depth):
        of_block = w.part()
        x = x + attend(w, layer_norm(w, x), context, 3)
        x = block(of_block, x, 3, is_causal=True)
    return x


def causal(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """A language model: attention and feed-forward layers in parallel, tied output embedding."""
    table, places = w.array(512, 128), w.array(32, 128)
    x = table[inputs.integers(512, batch, 32)] + places
    for _ in range(depth):
        y = layer_norm(w, x)
        x = x + attend(w, y, y, 4, is_causal=True) + feed_forward(w, y)
    return x @ table.T


def shared(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """One block, applied `depth` times with the same weights. The compiler keeps the loop."""

    def again(x: Any, _: None) -> tuple[Any, None]:
        return block(w, x, 4), None

    x, _ = lax.scan(again, dense(w, inputs.array(batch, 24, 64), 128), None, length=depth)
    return dense(w, x, 64)


def linear_attention(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """Linear attention: keys and values are summed before the queries read them."""
    width = 128

    def mix(x: Any) -> Any:
        query, key, value = (split_heads(dense(w, x, width), 4) for _ in range(3))
        query, key = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        memory = jnp.einsum("bshd,bshe->bhde", key, value)
        scale = jnp.einsum("bshd,bhd->bsh", query, key.sum(1))
        values = jnp.einsum("bshd,bhde->bshe", query, memory) / scale[..., None]
        return dense(w, values.reshape(x.shape), width)

    x = inputs.array(batch, 48, width)
    for _ in range(depth):
        x = x + mix(layer_norm(w, x))
        x = x + feed_forward(w, layer_norm(w, x))
    return x


def _rotate(x: Any) -> Any:
    """Rotate the halves of each head (b, s, h, d) by angles that grow with the position."""
    steps, half = x.shape[1], x.shape[3] // 2
    angle = np.outer(np.arange(steps), 1e4 ** (-np.arange(half) / half)).astype(np.float32)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]  # (s, 1, d / 2)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)


def _rms_norm(w: Draw, x: Any) -> Any:
    scale = w.array(x.shape[-1], scale=0.1, mean=1.0)
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def rotary(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """RMS norm, rotary positions, two key heads for eight query heads, gated feed-forward."""
    width, heads, shared_by, n_steps = 128, 8, 4, 24
    n_key = width // shared_by

    def attend(x: Any) -> Any:
        query, key, value = jnp.split(x, [width, width + n_key], axis=-1)
        groups = (batch, n_steps, heads // shared_by, shared_by, -1)
        query = _rotate(split_heads(query, heads)).reshape(groups)
        key = _rotate(split_heads(key, heads // shared_by))
        scores = jnp.einsum("bqghd,bkgd->bghqk", query, key) / query.shape[-1] ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((n_steps, n_steps), bool)), scores, -1e9)
        value = split_heads(value, heads // shared_by)
        values = jnp.einsum("bghqk,bkgd->bqghd", jax.nn.softmax(scores, axis=-1), value)
        return values.reshape(batch, n_steps, width)

    x = inputs.array(batch, n_steps, width)
    for _ in range(depth):
        y = attend(_rms_norm(w, x) @ w.weight(width, width + 2 * n_key))
        x = x + y @ w.weight(width, width)
        gate, y = jnp.split(_rms_norm(w, x) @ w.weight(width, 512), 2, axis=-1)
        x = x + (jax.nn.silu(gate) * y) @ w.weight(256, width)
    return x


def conformer(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """Attention and a gated convolution over time, between two half feed-forward layers."""
    width = 96
    x = inputs.array(batch, 32, width)
    for _ in range(depth):
        x = x + 0.5 * feed_forward(w, layer_norm(w, x), 2)
        y = layer_norm(w, x)
        x = x + attend(w, y, y, 4)
        y = jax.nn.glu(dense(w, layer_norm(w, x), 2 * width))
        y = rescale(w, conv(w, y, width, 5, groups=width))
        x = x + dense(w, jax.nn.silu(y), width)
        x = x + 0.5 * feed_forward(w, layer_norm(w, x), 2)
        x = layer_norm(w, x)
    return x


def local_attention(w: Draw, inputs: Draw, batch: int) -> Any:
    """Attention in windows of the text. Each window also reads the window before it."""
    n_steps, width, heads, size = 64, 96, 4, 8

    def attend(x: Any) -> Any:
        windows = (batch, n_steps // size, size, heads, width // heads)
        query, key, value = (dense(w, x, width).reshape(windows) for _ in range(3))
        key, value = (
            jnp.concatenate([jnp.pad(y, [(0, 0), (1, 0), *[(0, 0)] * 3])[:, :-1], y], axis=2)
            for y in (key, value)
        )
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", query, key) / query.shape[-1] ** 0.5
        mask = np.tri(size, 2 * size, size, bool)
        share = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        values = jnp.einsum("bnhqk,bnkhd->bnqhd", share, value)
        return dense(w, values.reshape(x.shape), width)

    x = inputs.array(batch, n_steps, width)
    for _ in range(3):
        x = x + attend(layer_norm(w, x))
        x = x + feed_forward(w, layer_norm(w, x))
    return x


def gated_mlp(w: Draw, inputs: Draw, batch: int) -> Any:
    """No attention: a dense layer over positions turns half of the features into gates."""
    width, inner, heads, n_steps = 96, 192, 4, 48
    x = inputs.array(batch, n_steps, width)
    for _ in range(4):
        content, gate = jnp.split(gelu(dense(w, layer_norm(w, x), 2 * inner)), 2, axis=-1)
        gate = split_heads(layer_norm(w, gate), heads)
        gate = 1 + jnp.einsum("hts,bshd->bthd", w.weight(heads, n_steps, n_steps), gate)
        x = x + dense(w, content * gate.reshape(content.shape), width)
    return x


def perceiver(w: Draw, inputs: Draw, batch: int) -> Any:
    """A Perceiver: a few latents read a long input twice, and questions read the latents."""
    width, n_latents, n_questions = 96, 12, 20
    x = dense(w, inputs.array(batch, 128, 24), width)
    z = jnp.broadcast_to(w.array(n_latents, width), (batch, n_latents, width))
    for _ in range(2):
        z = z + attend(w, layer_norm(w, z), x, 2)
        z = block(w, z, 4)
    questions = jnp.broadcast_to(w.array(n_questions, width), (batch, n_questions, width))
    return dense(w, attend(w, questions, z, 3), 32)


def funnel(w: Draw, inputs: Draw, batch: int) -> Any:
    """A funnel: each block halves the length of the text. The last block has the full length."""
    width, n_halvings = 96, 3

    def halve(x: Any) -> Any:
        b, s, d = x.shape
        return x.reshape(b, s // 2, 2, d).mean(2)

    start = x = inputs.array(batch, 64, width)
    for _ in range(n_halvings):
        y = layer_norm(w, x)
        x = halve(x) + attend(w, halve(y), y, 4)
        x = x + feed_forward(w, layer_norm(w, x))
    x = dense(w, x, width).repeat(2**n_halvings, axis=1) + start
    return block(w, x, 4)


def talking_heads(w: Draw, inputs: Draw, batch: int) -> Any:
    """Attention with heads that are mixed before the softmax and after it."""
    width, heads = 96, 6

    def attend(w: Draw, before: Any, after: Any, x: Any) -> Any:
        query, key, value = (split_heads(dense(w, x, width), heads) for _ in range(3))
        scores = jnp.einsum("bqhd,bkhd,hg->bqkg", query, key, before)
        share = jax.nn.softmax(scores / query.shape[-1] ** 0.5, axis=2) @ after
        values = jnp.einsum("bqkh,bkhd->bqhd", share, value)
        return dense(w, values.reshape(x.shape), width)

    x = inputs.array(batch, 24, width)
    for _ in range(3):
        of_block, before, after = w.part(), w.weight(heads, 8), w.weight(8, heads)
        x = x + attend(of_block, before, after, layer_norm(of_block, x))
        x = x + feed_forward(of_block, layer_norm(of_block, x))
    return x


def fourier(w: Draw, inputs: Draw, batch: int) -> Any:
    """Positions are mixed by filters in the frequency domain. Matrices compute the transform."""
    width, n_steps = 96, 48
    turns = 2 * np.pi * np.outer(np.arange(n_steps), np.arange(n_steps)) / n_steps
    waves = ((wave(turns) / n_steps**0.5).astype(np.float32) for wave in (np.cos, np.sin))
    cos, sin = map(w.fixed, waves)
    x = inputs.array(batch, n_steps, width)
    for _ in range(3):
        real, imaginary = w.array(n_steps, width), w.array(n_steps, width)
        y = layer_norm(w, x)
        even, odd = jnp.einsum("fs,bsd->bfd", cos, y), jnp.einsum("fs,bsd->bfd", sin, y)
        even, odd = even * real + odd * imaginary, odd * real - even * imaginary
        y = jnp.einsum("sf,bfd->bsd", cos, even) + jnp.einsum("sf,bfd->bsd", sin, odd)
        x = x + dense(w, y, width)
        x = x + feed_forward(w, layer_norm(w, x))
    return x


def seq2seq(w: Draw, inputs: Draw, batch: int, depth: int) -> Any:
    """An encoder and a decoder, both with biases for the distance of tokens."""
    width, heads, n_words, reach = 96, 4, 400, 8

    def attend(w: Draw, x: Any, context: Any, bias: Any) -> Any:
        query = split_heads(dense(w, x, width), heads)
        key, value = (split_heads(dense(w, context, width), heads) for _ in range(2))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) + bias
        values = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
        return dense(w, values.reshape(x.shape), width)

    def near(biases: Any, n_steps: int) -> Any:
        apart = np.subtract.outer(np.arange(n_steps), np.arange(n_steps))
        return biases[np.clip(apart, -reach, reach) + reach].transpose(2, 0, 1)  # (h, s, s)

    table = w.weight(n_words, width)
    both_ways, backwards = w.array(2 * reach + 1, heads), w.array(2 * reach + 1, heads)
    tokens = inputs.integers(n_words, batch, 32), inputs.integers(n_words, batch, 16)
    source, target = (table[words] for words in tokens)
    bias = near(both_ways, source.shape[1])
    for _ in range(depth):
        y = layer_norm(w, source)
        source = source + attend(w, y, y, bias)
        source = source + feed_forward(w, layer_norm(w, source))
    n_steps = target.shape[1]
    bias = near(backwards, n_steps) + np.triu(np.full((n_steps, n_steps), -1e9, np.float32), 1)
    for _ in range(depth):
        of_block = w.part()
        y = layer_norm(of_block, target)
        target = target + attend(of_block, y, y, bias)
        target = target + attend(w, layer_norm(w, target), source, 0.0)
        target = target + feed_forward(of_block, layer_norm(of_block, target))
    return target @ table.T
