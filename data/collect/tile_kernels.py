"""The catalogue of fused kernels to measure, by family, with several shapes each.

The letters of a kernel are its axes, as `data.collect.tiles` explains. Whole kernels take about
0.05 to 5 ms on one core of a CPU, long enough to time and short enough to time often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from data.collect import tile_blocks as blocks
from data.collect.tiles import Operand, TileKernel

Extents = dict[str, int]


@dataclass(frozen=True)
class Family:
    """Kernels that differ in their sizes alone.

    Attributes:
        axes: letters of the sizes, in the order in which `sizes` gives them.
        sizes: one tuple per kernel.
        make: (name, family, extents) to the kernel.
    """

    axes: str
    sizes: Sequence[tuple[int, ...]]
    make: Callable[[str, str, Extents], TileKernel]


def _einsum(formula: str) -> Callable[..., Any]:
    def combine(*blocks: Any) -> Any:
        from jax import numpy as jnp

        return jnp.einsum(formula, *blocks)

    return combine


def _einsum_kernel(
    formula: str,
    tiled: str,
    *,
    epilogue: Callable[..., Any] = lambda block, *extras: block,
    extras: Sequence[str] = (),
    has_weights: bool = False,
) -> Callable[[str, str, Extents], TileKernel]:
    """Return a maker of kernels "mk,kn->mn" with tiles of the axes `tiled`."""
    inputs, output = formula.split("->")

    def make(name: str, family: str, extents: Extents) -> TileKernel:
        return TileKernel(
            name=name,
            family=family,
            extents=extents,
            operands=tuple(map(Operand, inputs.split(","))),
            output=output,
            tiled=tiled,
            combine=_einsum(formula),
            epilogue=epilogue,
            extras=tuple(map(Operand, extras)),
            has_weights=has_weights,
        )

    return make


def _map_kernel(
    inputs: str, output: str, tiled: str, function: Callable[..., Any]
) -> Callable[[str, str, Extents], TileKernel]:
    """Return a maker of kernels that apply `function` to blocks of "ab,b" and give "ab"."""

    def make(name: str, family: str, extents: Extents) -> TileKernel:
        operands = tuple(map(Operand, inputs.split(",")))
        return TileKernel(name, family, extents, operands, output, tiled, function)

    return make


def _convolution(
    window: int, *, dilation: int = 1, depthwise: bool = False, tiled: str
) -> Callable[[str, str, Extents], TileKernel]:
    """Return a maker of 2-D convolutions over inputs that are already padded.

    Axes: n batch, h and w output positions, c input features, o output features, y and x window.
    """

    def combine(x: Any, weights: Any) -> Any:
        from jax import lax

        groups = x.shape[-1] if depthwise else 1
        kernel = weights[:, :, None, :] if depthwise else weights
        return lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(1, 1),
            padding="VALID",
            rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    def make(name: str, family: str, extents: Extents) -> TileKernel:
        reach = dilation * (window - 1)
        features = "c" if depthwise else "o"
        return TileKernel(
            name=name,
            family=family,
            extents=extents | {"y": window, "x": window},
            operands=(
                Operand("nhwc", {"h": reach, "w": reach}),
                Operand("yxc" if depthwise else "yxco"),
            ),
            output=f"nhw{features}",
            tiled=tiled,
            combine=combine,
            epilogue=blocks.bias_relu,
            extras=(Operand(features),),
            has_weights=True,
        )

    return make


def _rotary(name: str, family: str, extents: Extents) -> TileKernel:
    operands = (Operand("bshd"), Operand("se"))
    halves = extents | {"e": extents["d"] // 2}
    return TileKernel(name, family, halves, operands, "bshd", "bsh", blocks.rotate)


_MATMUL = [(128, 256, 512), (256, 256, 256), (64, 768, 384), (512, 128, 256), (196, 192, 576)]
_IMAGES = [(1, 56, 56, 32, 32), (4, 14, 14, 128, 64), (8, 28, 28, 16, 32), (1, 28, 28, 64, 64)]

FAMILIES: dict[str, Family] = {
    "matmul_bias_gelu": Family(
        "mkn",
        [*_MATMUL, (32, 512, 1024)],
        _einsum_kernel(
            "mk,kn->mn", "mnk", epilogue=blocks.bias_gelu, extras=["n"], has_weights=True
        ),
    ),
    "matmul": Family(
        "mkn",
        [*_MATMUL[:4], (100, 300, 500), (384, 384, 192)],
        _einsum_kernel("mk,kn->mn", "mnk", has_weights=True),
    ),
    "conv3x3_relu": Family("nhwco", _IMAGES, _convolution(3, tiled="hwoc")),
    "conv1x1": Family(
        "nhwco",
        [*_IMAGES[:3], (2, 20, 20, 96, 96)],
        _einsum_kernel(
            "nhwc,co->nhwo", "hwoc", epilogue=blocks.bias_relu, extras=["o"], has_weights=True
        ),
    ),
    "softmax": Family(
        "hqs",
        [(8, 128, 128), (4, 256, 256), (12, 64, 512), (16, 100, 100)],
        _map_kernel("hqs", "hqs", "hq", blocks.softmax),
    ),
    "layernorm": Family(
        "bsd",
        [(8, 128, 256), (32, 50, 192), (4, 512, 128), (16, 64, 768)],
        _map_kernel("bsd,d,d", "bsd", "bs", blocks.layernorm),
    ),
    "scale_transpose": Family(
        "ab",
        [(512, 512), (256, 2048), (1024, 384), (720, 480)],
        _map_kernel("ab,b", "ba", "ab", blocks.scale_transpose),
    ),
    "channels_first": Family(
        "nhwc",
        [(8, 28, 28, 64), (2, 56, 56, 48), (16, 14, 14, 128)],
        _map_kernel("nhwc,c", "nchw", "nhc", blocks.to_channels_first),
    ),
    "column_sum": Family(
        "ab",
        [(2048, 256), (512, 1024), (8192, 64)],
        _map_kernel("ab", "b", "ba", blocks.column_sum),
    ),
    "row_sum": Family(
        "tab",
        [(16, 64, 512), (4, 512, 256), (8, 96, 1024)],
        _map_kernel("tab", "ta", "tab", blocks.row_sum),
    ),
    "attention_scores": Family(
        "bqkd",
        [(8, 64, 64, 64), (4, 128, 128, 32), (12, 96, 96, 64), (2, 256, 256, 64)],
        _einsum_kernel("bqd,bkd->bqk", "bqk", epilogue=blocks.scaled_masked, extras=["qk"]),
    ),
    "gelu_gate": Family(
        "ab",
        [(512, 512), (2048, 192), (128, 3072)],
        _map_kernel("ab,ab", "ab", "ab", blocks.gelu_gate),
    ),
    "max_pool": Family(
        "nhpwqc",
        [(4, 28, 2, 28, 2, 64), (8, 14, 2, 14, 2, 96), (2, 56, 2, 56, 2, 32)],
        _map_kernel("nhpwqc", "nhwc", "nhwc", blocks.max_pool),
    ),
    "gram": Family(
        "nde",
        [(512, 128, 128), (2048, 64, 96), (256, 192, 256)],
        _einsum_kernel("nd,ne->de", "den", has_weights=True),
    ),
    "batched_matmul": Family(
        "bmkn",
        [(8, 64, 64, 128), (4, 128, 128, 64), (16, 48, 96, 48), (2, 256, 96, 192)],
        _einsum_kernel("bmk,bkn->bmn", "bmn", has_weights=True),
    ),
    "depthwise_relu": Family(
        "nhwc",
        [(2, 28, 28, 64), (1, 56, 56, 32), (4, 14, 14, 96)],
        _convolution(3, depthwise=True, tiled="nhwc"),
    ),
    "residual_rmsnorm": Family(
        "bsd",
        [(8, 128, 192), (16, 64, 512), (4, 256, 320)],
        _map_kernel("bsd,bsd,d", "bsd", "bs", blocks.residual_rmsnorm),
    ),
    "mean_pool": Family(
        "nhwc",
        [(16, 14, 14, 128), (8, 28, 28, 64), (32, 8, 8, 256)],
        _map_kernel("nhwc", "nc", "nch", blocks.mean_pool),
    ),
    "attention_values": Family(
        "bqkd",
        [(8, 64, 64, 64), (4, 128, 128, 64), (12, 96, 96, 32), (2, 256, 256, 64)],
        _einsum_kernel("bqk,bkd->bqd", "bqd"),
    ),
    "conv5x5_relu": Family(
        "nhwco",
        [(1, 32, 32, 16, 32), (4, 16, 16, 32, 32), (1, 48, 48, 8, 24)],
        _convolution(5, tiled="hwo"),
    ),
    "dilated_conv_relu": Family(
        "nhwco",
        [(1, 40, 40, 32, 32), (2, 24, 24, 48, 32), (1, 56, 56, 16, 48)],
        _convolution(3, dilation=2, tiled="hwo"),
    ),
    "logsumexp": Family(
        "tab",
        [(16, 64, 512), (4, 256, 384), (32, 32, 1000)],
        _map_kernel("tab", "ta", "ta", blocks.logsumexp),
    ),
    "distances": Family(
        "mnd",
        [(256, 256, 64), (128, 512, 128), (384, 320, 32)],
        _einsum_kernel("md,nd->mn", "mn", epilogue=blocks.distance, extras=["m", "n"]),
    ),
    "rotary": Family("bshd", [(4, 128, 8, 64), (8, 96, 4, 64), (2, 256, 12, 32)], _rotary),
}


@cache
def catalogue() -> dict[str, TileKernel]:
    """Return all kernels by name, such as "matmul_m128_k256_n512"."""
    kernels = {}
    for family_name, family in FAMILIES.items():
        for sizes in family.sizes:
            extents = dict(zip(family.axes, sizes, strict=True))
            suffix = "_".join(f"{axis}{size}" for axis, size in extents.items())
            name = f"{family_name}_{suffix}"
            kernels[name] = family.make(name, family_name, extents)
    return kernels
