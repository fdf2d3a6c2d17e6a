"""Models of texts, (b, s, d). See `autotune.programs.layers` for shapes and arguments."""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.nn import gelu, log_softmax, sigmoid, silu, softmax

from autotune.programs.layers import Draw, dense, layer_norm, normalised, rescale, scaled_conv
from autotune.programs.transformers import block, feed_forward, split_heads


def _share(query: Any, key: Any) -> Any:
    """Return the attention weights of queries (b, q, h, d) and keys (b, k, h, d): (b, h, q, k)."""
    return softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5, axis=-1)


def _join(share: Any, value: Any) -> Any:
    """Sum values (b, k, h, d) by weights (b, h, q, k) and concatenate the heads: (b, q, d)."""
    return jnp.einsum("bhqk,bkhd->bqhd", share, value).reshape(len(share), share.shape[2], -1)


def retention(w: Draw, inputs: Draw, batch: int) -> Any:
    """Attention without softmax: the weights decay with the distance, at one rate per head."""
    width, heads, n_steps = 128, 4, 64
    apart = np.subtract.outer(np.arange(n_steps), np.arange(n_steps))

    def retain(x: Any) -> Any:
        query, key, value = (split_heads(dense(w, x, width), heads) for _ in range(3))
        pace = jax.nn.softplus(w.array(heads, mean=-2.0))[:, None, None]
        decay = jnp.where(apart >= 0, jnp.exp(-pace * np.maximum(apart, 0)), 0.0)  # (h, s, s)
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * decay / query.shape[-1] ** 0.5
        scores = scores / jnp.maximum(abs(scores).sum(-1, keepdims=True), 1)
        values = normalised(jnp.einsum("bhqk,bkhd->bqhd", scores, value), (-1,))
        return dense(w, silu(dense(w, x, width)) * rescale(w, values.reshape(x.shape)), width)

    x = inputs.array(batch, n_steps, width)
    for _ in range(3):
        x = x + retain(layer_norm(w, x))
        x = x + feed_forward(w, layer_norm(w, x), 2)
    return x


def low_rank(w: Draw, inputs: Draw, batch: int) -> Any:
    """Low-rank attention: keys and values of a long text are projected to 12 positions."""
    width, heads, n_steps, n_places = 128, 4, 128, 12
    x = inputs.array(batch, n_steps, width)
    for _ in range(2):
        y = layer_norm(w, x)
        query, *read = (split_heads(dense(w, y, width), heads) for _ in range(3))
        places = w.weight(2, n_steps, heads, n_places, heads) * 2**0.5
        key, value = jnp.einsum("kbshd,kshpg->kbpgd", jnp.stack(read), places)
        x = x + dense(w, _join(_share(query, key), value), width)
        x = x + feed_forward(w, layer_norm(w, x), 2)
    return dense(w, x.max(1), 64)


def landmarks(w: Draw, inputs: Draw, batch: int) -> Any:
    """Nyström attention: landmarks are means of segments, and steps invert their weights."""
    width, heads, n_marks, size, eye = 96, 4, 8, 8, np.eye(8, dtype=np.float32)

    def inverse(share: Any) -> Any:
        guess = share.swapaxes(2, 3) / share.sum(2).max(-1)[..., None, None]
        for _ in range(4):
            near = share @ guess
            guess = guess @ (13 * eye - near @ (15 * eye - near @ (7 * eye - near))) / 4
        return guess

    def read(x: Any) -> Any:
        query, key, value = (split_heads(dense(w, x, width), heads) for _ in range(3))
        segments = (batch, n_marks, size, heads, -1)
        of_query, of_key = query.reshape(segments).mean(2), key.reshape(segments).mean(2)
        share = _share(query, of_key) @ inverse(_share(of_query, of_key))
        context = split_heads(_join(_share(of_query, key), value), heads)  # (b, marks, h, d)
        nearby = scaled_conv(w, value.reshape(x.shape), width, 5, groups=width)
        return dense(w, _join(share, context) + nearby, width)

    x = inputs.array(batch, n_marks * size, width)
    for _ in range(2):
        x = x + read(layer_norm(w, x))
        x = x + feed_forward(w, layer_norm(w, x))
    return x


def synthesizer(w: Draw, inputs: Draw, batch: int) -> Any:
    """Attention weights from each token alone plus learned weights, without pairs of tokens."""
    width, heads, n_steps = 128, 4, 80
    mask, x = np.tri(n_steps, dtype=bool), inputs.array(batch, n_steps, width)
    for _ in range(3):
        y = layer_norm(w, x)
        scores = dense(w, jax.nn.relu(dense(w, y, width)), heads * n_steps)
        scores = scores.reshape(batch, n_steps, heads, n_steps).swapaxes(1, 2)
        scores = jnp.where(mask, scores + w.array(heads, n_steps, n_steps), -1e9)
        value = split_heads(dense(w, y, width), heads)
        x = x + dense(w, _join(softmax(scores, axis=-1), value), width)
        x = x + feed_forward(w, layer_norm(w, x), 2)
    return x


def gated_conv(w: Draw, inputs: Draw, batch: int) -> Any:
    """Gated causal convolutions with growing dilation. The output is a sum over all layers."""
    width, n_words, n_steps, n_groups = 96, 300, 96, 8
    heard, x = 0.0, w.array(n_words, width)[inputs.integers(n_words, batch, n_steps)]
    for dilation in (1, 2, 4, 8, 1, 2):
        # Moved by one dilation, a window of three around a step ends with the step itself.
        before = jnp.pad(x, ((0, 0), (dilation, 0), (0, 0)))[:, :n_steps]
        value, gate = jnp.split(scaled_conv(w, before, 2 * width, 3, dilation=dilation), 2, -1)
        y = (jnp.tanh(value) * sigmoid(gate)).reshape(batch, n_steps, n_groups, -1)
        y = normalised(y, (1, 3)).reshape(x.shape)
        x, heard = x + dense(w, y, width), heard + dense(w, y, width)
    return log_softmax(dense(w, gelu(heard), n_words), axis=-1)


def biaffine(w: Draw, inputs: Draw, batch: int) -> Any:
    """A dependency parser: probabilities of the head and the label of each word."""
    width, n_words, n_labels = 128, 300, 24
    x = w.array(n_words, width)[inputs.integers(n_words, batch, 48)]
    x = block(w, block(w, x, 4), 4)

    def score(n_out: int, n_scores: int) -> Any:
        head, word = (gelu(dense(w, x, n_out)) for _ in range(2))
        alone = dense(w, head, n_scores)[:, :, None] + dense(w, word, n_scores)[:, None]
        products = jnp.einsum("bid,dle->bile", head, w.weight(n_out, n_scores, n_out))
        return jnp.einsum("bile,bje->bijl", products, word) / n_out**0.5 + alone

    return log_softmax(score(96, 1), axis=1) + log_softmax(score(32, n_labels), axis=3)


def memory_hops(w: Draw, inputs: Draw, batch: int) -> Any:
    """A memory network: questions read a memory of sentences in four steps."""
    width, heads, n_words, n_sentences = 128, 4, 200, 128
    sentences, questions = (inputs.integers(n_words, batch, n, 8) for n in (n_sentences, 32))

    def embed(words: Any) -> Any:
        return jnp.einsum("bnsd,sd->bnd", w.array(n_words, width)[words], w.array(8, width) / 3)

    questions_now, key = embed(questions), embed(sentences) + w.array(n_sentences, width)
    for _ in range(4):
        value = embed(sentences) + w.array(n_sentences, width)
        share = _share(split_heads(layer_norm(w, questions_now), heads), split_heads(key, heads))
        answer = _join(share, split_heads(value, heads))
        gate = sigmoid(dense(w, questions_now, width))
        questions_now, key = gate * answer + (1 - gate) * dense(w, questions_now, width), value
    return dense(w, questions_now, n_words)


def pointer(w: Draw, inputs: Draw, batch: int) -> Any:
    """A pointer network: the next word is from the vocabulary, or a copy from the text."""
    width, n_words, n_steps, n_written = 128, 300, 64, 32
    table = w.array(n_words, width)
    text = inputs.integers(n_words, batch, n_steps)
    source = block(w, table[text], 4)
    x = block(w, table[inputs.integers(n_words, batch, n_written)], 4, is_causal=True)
    pairs = dense(w, x, width)[:, :, None] + dense(w, source, width)[:, None]
    share = softmax(jnp.tanh(pairs) @ w.array(width), axis=-1)  # (b, written, s)
    context = jnp.concatenate([x, jnp.einsum("bts,bsd->btd", share, source)], axis=-1)
    copies = sigmoid(dense(w, context, 1))
    copy_share = jnp.einsum("bts,bsv->btv", share, jax.nn.one_hot(text, n_words))
    word_share = softmax(dense(w, context, width) @ table.T / width**0.5, axis=-1)
    return jnp.log(copies * copy_share + (1 - copies) * word_share + 1e-6)


def hierarchy(w: Draw, inputs: Draw, batch: int) -> Any:
    """A byte model with three levels: bytes of a patch, all patches, then bytes again."""
    width, wide, n_patches, size = 48, 256, 24, 8
    patches = (batch * n_patches, size, width)
    x = w.array(256, width)[inputs.integers(256, batch, n_patches, size)]
    x = block(w, (x + w.array(size, width)).reshape(patches), 2, is_causal=True)
    y = dense(w, x.reshape(batch, n_patches, size * width), wide)
    y = dense(w, block(w, y, 4, is_causal=True), size * width)
    context = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    x = block(w, x + context.reshape(patches), 2, is_causal=True)
    return dense(w, x, 256).reshape(batch, n_patches * size, 256)


def late_interaction(w: Draw, inputs: Draw, batch: int) -> Any:
    """Late interaction: words and phrases of a question match their best words of each text."""
    width, n_words, n_steps, n_rare = 128, 300, 80, 280
    # The questions, then the texts.
    words = inputs.integers(n_words, 2 * batch, n_steps)
    fits, x = jnp.zeros(()), block(w, w.array(n_words, width)[words] + w.array(n_steps, width), 4)
    for window in (1, 3):
        y = dense(w, gelu(scaled_conv(w, x, width, window)), 48)
        y = y * lax.rsqrt((y * y).sum(-1, keepdims=True) + 1e-6)
        alike = jnp.einsum("itd,jsd->ijts", y[:batch], y[batch:])
        alike = jnp.where((words < n_rare)[batch:][:, None], alike, -1.0)  # (j, 1, s)
        weight = softmax(dense(w, x[:batch], 1)[..., 0], axis=-1)
        fits = fits + jnp.einsum("ijt,it->ij", alike.max(-1), weight)
    return log_softmax(10 * fits, axis=-1)


def state_space(w: Draw, inputs: Draw, batch: int) -> Any:
    """A selective state space: the decay depends on the token. Sums compute all steps at once."""
    width, n_states, n_steps = 64, 8, 32

    def recur(x: Any) -> Any:
        decay = jnp.cumsum(0.3 * jax.nn.softplus(dense(w, x, width)), axis=1)
        enter, leave = dense(w, x, n_states), dense(w, x, n_states)
        states = jnp.einsum("bsd,bsn->bsdn", x * jnp.exp(decay), enter)
        states = jnp.cumsum(states, axis=1) * jnp.exp(-decay)[..., None]
        return jnp.einsum("bsdn,bsn->bsd", states, leave) + rescale(w, x)

    x = dense(w, inputs.array(batch, n_steps, 64), width)
    for _ in range(3):
        y, gate = jnp.split(dense(w, layer_norm(w, x), 2 * width), 2, axis=-1)
        before = jnp.pad(y, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        y = silu(scaled_conv(w, before, width, 3, groups=width))
        x = x + dense(w, recur(y) * silu(gate), width)
    return x


def adapters(w: Draw, inputs: Draw, batch: int) -> Any:
    """An encoder with low-rank adapters of its dense layers, and a learned prefix of keys."""
    width, heads, rank, n_steps, n_prefix = 128, 4, 4, 48, 8

    def adapt(x: Any, n_out: int) -> Any:
        return dense(w, x, n_out) + x @ w.weight(x.shape[-1], rank) @ w.weight(rank, n_out) / 2

    def add_prefix(x: Any) -> Any:
        prefix = jnp.repeat(w.array(1, n_prefix, heads, width // heads), batch, axis=0)
        return jnp.concatenate([prefix, split_heads(adapt(x, width), heads)], axis=1)

    x = inputs.array(batch, n_steps, width)
    for _ in range(3):
        y = layer_norm(w, x)
        share = _share(split_heads(adapt(y, width), heads), add_prefix(y))
        x = x + adapt(_join(share, add_prefix(y)), width)
        x = x + adapt(gelu(adapt(layer_norm(w, x), 4 * width)), width)
    return dense(w, layer_norm(w, x).mean(1), 32)
