"""The networks that are measured for the sample: layers, and an architecture by each public name.

An architecture takes a batch size, some a depth, and returns a network, its weights and an example
input. Weights are arguments, drawn from a seed. Needs jax, so it is imported where one is built.

Shapes: b batch, h and w image axes, s sequence, d features, c channels. Images are (b, h, w, c)
and kernels (window…, c in, c out), as JAX users write them.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.nn import gelu, relu, sigmoid
from numpy.typing import NDArray

Weights = list[Any]
Network = Callable[[Weights, Any], Any]
Parts = tuple[Network, Weights, Any]
WINDOW_LETTERS = {1: "W", 2: "HW", 3: "DHW"}
TARGET_SEED, RATE = 99, 1e-3


class Draw:
    """Draws example arrays from a seed, weights scaled so that activations keep their size."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def array(self, *shape: int) -> NDArray[np.float32]:
        """Return a standard normal array."""
        return self._rng.standard_normal(shape).astype(np.float32)

    def weight(self, *shape: int) -> NDArray[np.float32]:
        """Return a weight (…fan in, out) of variance 1 / fan in."""
        fan_in = max(1, int(np.prod(shape[:-1])))
        return self.array(*shape) * np.float32(fan_in**-0.5)

    def affine(self, width: int) -> Weights:
        """Return a scale and a shift (width,)."""
        return [1 + 0.1 * self.array(width), 0.1 * self.array(width)]

    def dense(self, n_in: int, n_out: int) -> Weights:
        """Return the weight (n_in, n_out) and bias (n_out,) of a dense layer."""
        return [self.weight(n_in, n_out), 0.1 * self.array(n_out)]

    def scaled(self, *shape: int) -> Weights:
        """Return a convolution's kernel and the affine of its output."""
        return [self.weight(*shape), self.affine(shape[-1])]

    def integers(self, high: int, *shape: int) -> NDArray[np.int32]:
        """Return int32 numbers below `high`."""
        return self._rng.integers(0, high, shape, dtype=np.int32)


def training_step(parts: Parts) -> tuple[Callable[..., Weights], tuple[Any, ...]]:
    """Return a step of gradient descent on the squared error, and its (weights, x, target)."""
    network, weights, x = parts

    def loss(weights: Weights, x: Any, target: Any) -> Any:
        difference = network(weights, x) - target
        return (difference * difference).mean()

    def step(weights: Weights, x: Any, target: Any) -> Weights:
        gradient = jax.grad(loss)(weights, x, target)
        return jax.tree.map(lambda weight, slope: weight - RATE * slope, weights, gradient)

    target = Draw(TARGET_SEED).array(*jax.eval_shape(network, weights, x).shape)
    return step, (weights, x, target)


def _dense(weights: Weights, x: Any) -> Any:
    weight, bias = weights
    return x @ weight + bias


def _convolve(weight: Any, x: Any, *, stride: int = 1, dilation: int = 1, groups: int = 1) -> Any:
    """Convolve (b, window…, c) with (window…, c / groups, c out)."""
    letters = WINDOW_LETTERS[x.ndim - 2]
    return lax.conv_general_dilated(
        x,
        weight,
        (stride,) * len(letters),
        "SAME",
        rhs_dilation=(dilation,) * len(letters),
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=groups,
    )


def _upsample(weight: Any, x: Any) -> Any:
    """Convolve transposed with stride 2: (b, h, w, c) to (b, 2 h, 2 w, c out)."""
    return lax.conv_transpose(x, weight, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _affine(weights: Weights, x: Any) -> Any:
    scale, shift = weights
    return x * scale + shift


def _batch_norm(weights: Weights, x: Any) -> Any:
    axes = tuple(range(x.ndim - 1))
    centred = x - x.mean(axes)
    variance = (centred * centred).mean(axes)
    return _affine(weights, centred * lax.rsqrt(variance + 1e-5))


def _layer_norm(weights: Weights, x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return _affine(weights, centred * lax.rsqrt(variance + 1e-5))


def _average_pool(x: Any) -> Any:
    return x.mean(tuple(range(1, x.ndim - 1)))


def _max_pool(x: Any) -> Any:
    return lax.reduce_window(x, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


# Convolutional networks.


def plain(batch: int) -> Parts:
    """Six 3 x 3 convolutions with batch normalisation, pooled twice, and a dense head."""
    draw = Draw(1)
    weights = [draw.scaled(3, 3, i, o) for i, o in pairwise((8, 16, 16, 32, 32, 64, 64))]
    weights.append(draw.dense(4 * 4 * 64, 128))

    def network(weights: Weights, x: Any) -> Any:
        *blocks, head = weights
        for number, (kernel, affine) in enumerate(blocks):
            x = relu(_batch_norm(affine, _convolve(kernel, x)))
            x = _max_pool(x) if number % 2 else x
        return _dense(head, x.reshape(x.shape[0], -1))

    return network, weights, draw.array(batch, 32, 32, 8)


def _bottlenecks(weights: Weights, x: Any, *, stride: int = 2, bend: Any = relu) -> Any:
    stem, *blocks, head = weights
    x = _convolve(stem, x, stride=stride)
    for block in blocks:
        y = x
        for kernel, affine in block:
            groups = y.shape[-1] // kernel.shape[-2]
            y = bend(_affine(affine, _convolve(kernel, y, groups=groups)))
        x = x + y if x.shape == y.shape else y
    return _dense(head, _average_pool(x))


def residual(batch: int) -> Parts:
    """Bottleneck blocks of 1 x 1, 3 x 3 and 1 x 1 convolutions around identities."""
    draw, width, inner = Draw(2), 64, 16
    weights: Weights = [draw.weight(3, 3, 3, width)]
    for _ in range(6):
        kernels = ((1, 1, width, inner), (3, 3, inner, inner), (1, 1, inner, width))
        weights.append([draw.scaled(*shape) for shape in kernels])
    weights.append(draw.dense(width, 100))
    return _bottlenecks, weights, draw.array(batch, 32, 32, 3)


def depthwise(batch: int) -> Parts:
    """Inverted bottlenecks: widen, in every other block convolve each channel alone, narrow."""
    draw = Draw(3)
    weights: Weights = [draw.weight(3, 3, 3, 48)]
    for number, (n_in, n_out) in enumerate(pairwise((48, 64, 64, 64, 96, 96))):
        wide = 3 * n_in
        kernels = [(1, 1, n_in, wide), (3, 1, 1, wide), (1, 1, wide, n_out)]
        if number % 2 == 0:
            kernels.pop(1)
        weights.append([draw.scaled(*shape) for shape in kernels])
    weights.append(draw.dense(96, 100))
    network = partial(_bottlenecks, stride=4, bend=jax.nn.relu6)
    return network, weights, draw.array(batch, 32, 32, 3)


def volume(batch: int) -> Parts:
    """3-D convolutions along one axis at a time between 1 x 1 x 1 ones that mix channels."""
    draw, width, inner = Draw(6), 64, 16
    blocks = [
        [
            draw.scaled(1, 1, 1, width, inner),
            draw.scaled(*window, inner, inner),
            draw.scaled(1, 1, 1, inner, width),
        ]
        for window in ((3, 1, 1), (1, 3, 1), (1, 1, 3), (3, 1, 1))
    ]
    weights = [draw.weight(2, 2, 2, 2, width), *blocks, draw.dense(width, 50)]
    return _bottlenecks, weights, draw.array(batch, 12, 12, 12, 2)


def unet(batch: int) -> Parts:
    """Down and up again over three scales, with the way down joined to the way up."""
    draw = Draw(4)
    widths = (16, 32, 64)
    down = [[draw.weight(3, 3, i, o), *draw.scaled(1, 1, o, o)] for i, o in pairwise((4, *widths))]
    up = [
        [draw.weight(2, 2, o, i), *draw.scaled(1, 1, 2 * i, i)]
        for i, o in reversed(list(pairwise(widths)))
    ]

    def network(weights: Weights, x: Any) -> Any:
        down, up, last = weights
        passed = []
        for first, second, affine in down:
            x = relu(_convolve(first, x))
            x = relu(_affine(affine, _convolve(second, x)))
            passed.append(x)
            x = _max_pool(x)
        x = passed.pop()
        for raise_scale, merge, affine in up:
            x = jnp.concatenate([_upsample(raise_scale, x), passed.pop()], axis=-1)
            x = relu(_affine(affine, _convolve(merge, x)))
        return _convolve(last, x)

    return network, [down, up, draw.weight(1, 1, widths[0], 2)], draw.array(batch, 16, 16, 4)


def dilated(batch: int) -> Parts:
    """Gated 1-D convolutions of growing dilation with skips, as for sound."""
    draw, width = Draw(5), 64
    blocks = [[draw.weight(window, width, width) for window in (3, 3, 1)] for _ in range(6)]

    def network(weights: Weights, x: Any) -> Any:
        blocks, head = weights
        total = 0.0
        for number, (value, gate, mix) in enumerate(blocks):
            dilation = 2**number
            opened = sigmoid(_convolve(gate, x, dilation=dilation))
            y = _convolve(mix, jnp.tanh(_convolve(value, x, dilation=dilation)) * opened)
            x, total = x + y, total + y
        return _dense(head, relu(total))

    return network, [blocks, draw.dense(width, 64)], draw.array(batch, 96, width)


def autoencoder(batch: int) -> Parts:
    """Strided convolutions to a code, and transposed ones back to the image."""
    draw = Draw(7)
    widths = list(pairwise((4, 16, 32, 64)))
    encoder = [draw.scaled(3, 3, i, o) for i, o in widths]
    decoder = [draw.scaled(3, 3, o, i) for i, o in reversed(widths)]
    code = [draw.dense(4 * 4 * 64, 64), draw.dense(64, 4 * 4 * 64)]

    def network(weights: Weights, x: Any) -> Any:
        encoder, (shrink, grow), decoder = weights
        for kernel, affine in encoder:
            x = jax.nn.leaky_relu(_affine(affine, _convolve(kernel, x, stride=2)))
        shape = x.shape
        x = _dense(grow, _dense(shrink, x.reshape(shape[0], -1))).reshape(shape)
        for kernel, affine in decoder:
            x = jax.nn.leaky_relu(_affine(affine, _upsample(kernel, x)))
        return sigmoid(x)

    return network, [encoder, code, decoder], draw.array(batch, 32, 32, 4)


def dense_block(batch: int) -> Parts:
    """Each layer reads all layers before it, joined along the channels."""
    draw, growth, start = Draw(8), 16, 48
    layers = [
        [draw.affine(n_in), draw.weight(1, 1, n_in, 64), draw.weight(3, 3, 64, growth)]
        for n_in in range(start, start + 6 * growth, growth)
    ]

    def network(weights: Weights, x: Any) -> Any:
        stem, layers, head = weights
        x = _convolve(stem, x)
        for affine, squeeze, grow in layers:
            y = _convolve(squeeze, relu(_affine(affine, x)))
            x = jnp.concatenate([x, _convolve(grow, relu(y))], axis=-1)
        return _dense(head, _average_pool(x))

    head = draw.dense(start + growth * len(layers), 100)
    return network, [draw.weight(3, 3, 3, start), layers, head], draw.array(batch, 8, 8, 3)


# Networks of dense layers, and recurrent ones.


def mlp(batch: int) -> Parts:
    """Dense layers of different widths with layer normalisation."""
    draw = Draw(11)
    widths = pairwise((256, 512, 384, 512, 256, 384, 128))
    weights = [[draw.dense(i, o), draw.affine(o)] for i, o in widths]

    def network(weights: Weights, x: Any) -> Any:
        for layer, affine in weights:
            x = gelu(_layer_norm(affine, _dense(layer, x)))
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
        x = _dense(embed, x.reshape(b, n_patches, -1))
        for first, over, back, second, wide, narrow in blocks:
            y = _layer_norm(first, x).swapaxes(1, 2)
            x = x + _dense(back, gelu(_dense(over, y))).swapaxes(1, 2)
            x = x + _dense(narrow, gelu(_dense(wide, _layer_norm(second, x))))
        return _dense(head, x.mean(1))

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
            x = relu(_dense(layer, x))
        rows = [table[ids[:, field]] for field, table in enumerate(tables)]
        fields = jnp.stack([x, *rows], axis=1)
        crossed = jnp.einsum("bid,bjd->bij", fields, fields)
        x = jnp.concatenate([x, crossed.reshape(x.shape[0], -1)], axis=-1)
        for layer in top:
            x = relu(_dense(layer, x))
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
        return lax.scan(step, (zeros, zeros), _dense(from_input, x))[1]

    def network(weights: Weights, x: Any) -> Any:
        layers, head = weights
        for layer in layers:
            x = run_layer(layer, x)
        return _dense(head, x)

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
        return lax.scan(step, zeros, _dense(from_input, x), reverse=backwards)[1]

    def network(weights: Weights, x: Any) -> Any:
        ways, (hidden, head) = weights
        both = [run_way(way, x, backwards=bool(i)) for i, way in enumerate(ways)]
        joined = jnp.concatenate(both, axis=-1).mean(0)
        return _dense(head, relu(_dense(hidden, joined)))

    heads = [draw.dense(2 * width, 256), draw.dense(256, 64)]
    return network, [ways, heads], draw.array(n_steps, batch, 64)


# Transformers, on (b, s, d).


def _split_heads(x: Any, n_heads: int) -> Any:
    b, s, d = x.shape
    return x.reshape(b, s, n_heads, d // n_heads)


def _attend(weights: Weights, x: Any, context: Any, heads: int, *, is_causal: bool = False) -> Any:
    """Attend from x (b, s, d) to context (b, t, d) with several heads."""
    to_query, to_key, to_value, to_output = weights
    query = _split_heads(_dense(to_query, x), heads)
    key = _split_heads(_dense(to_key, context), heads)
    value = _split_heads(_dense(to_value, context), heads)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    if is_causal:
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        scores = jnp.where(allowed, scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), value)
    return _dense(to_output, mixed.reshape(x.shape))


def _attention_weights(draw: Draw, width: int) -> Weights:
    return [draw.dense(width, width) for _ in range(4)]


def _feed_forward(weights: Weights, x: Any) -> Any:
    widen, narrow = weights
    return _dense(narrow, gelu(_dense(widen, x)))


def _feed_forward_weights(draw: Draw, width: int, factor: int = 4) -> Weights:
    return [draw.dense(width, factor * width), draw.dense(factor * width, width)]


def _block_weights(draw: Draw, width: int) -> Weights:
    return [
        *(draw.affine(width), _attention_weights(draw, width)),
        *(draw.affine(width), _feed_forward_weights(draw, width)),
    ]


def _block(weights: Weights, x: Any, heads: int, *, is_causal: bool = False) -> Any:
    first, attention, second, forward = weights
    y = _layer_norm(first, x)
    x = x + _attend(attention, y, y, heads, is_causal=is_causal)
    return x + _feed_forward(forward, _layer_norm(second, x))


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
        return _dense(head, x[:, 0])

    blocks = [_block_weights(draw, width) for _ in range(depth)]
    return network, [blocks, draw.dense(width, 32)], draw.array(batch, 32, width)


def decoder(batch: int, depth: int) -> Parts:
    """Causal attention, attention to an encoded text, and feed forward, `depth` times."""
    draw, width = Draw(23), 96

    def network(weights: Weights, inputs: Any) -> Any:
        x, context = inputs
        for block, between, across in weights:
            x = x + _attend(across, _layer_norm(between, x), context, 3)
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
            y = _layer_norm(affine, x)
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

        x, _ = lax.scan(again, _dense(embed, x), None, length=depth)
        return _dense(head, x)

    weights = [draw.dense(64, width), _block_weights(draw, width), draw.dense(width, 64)]
    return network, weights, draw.array(batch, 24, 64)


def linear_attention(batch: int, depth: int) -> Parts:
    """Attention without softmax: keys and values are summed up before queries read them."""
    draw, width = Draw(26), 128

    def mix(weights: Weights, x: Any) -> Any:
        query, key, value = (_split_heads(_dense(w, x), 4) for w in weights[:3])
        query, key = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
        memory = jnp.einsum("bshd,bshe->bhde", key, value)
        scale = jnp.einsum("bshd,bhd->bsh", query, key.sum(1))
        mixed = jnp.einsum("bshd,bhde->bshe", query, memory) / scale[..., None]
        return _dense(weights[3], mixed.reshape(x.shape))

    def network(weights: Weights, x: Any) -> Any:
        for first, attention, second, forward in weights:
            x = x + mix(attention, _layer_norm(first, x))
            x = x + _feed_forward(forward, _layer_norm(second, x))
        return x

    weights = [_block_weights(draw, width) for _ in range(depth)]
    return network, weights, draw.array(batch, 48, width)
