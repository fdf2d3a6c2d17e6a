"""A family of tile kernels, and makers of its kernels from an einsum, a function or a window.

The letters of a kernel are its axes, as `data.collect.tiles.kernel` explains.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.collect.tiles import blocks
from data.collect.tiles.kernel import Operand, TileKernel

Extents = dict[str, int]
Make = Callable[[str, str, Extents], TileKernel]


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
    make: Make


def einsum_kernel(
    formula: str,
    tiled: str,
    *,
    epilogue: Callable[..., Any] = lambda block, *extras: block,
    extras: Sequence[str] = (),
    has_weights: bool = False,
) -> Make:
    """Return a maker of kernels "mk,kn->mn" with tiles of the axes `tiled`."""
    inputs, output = formula.split("->")

    def combine(*operands: Any) -> Any:
        from jax import numpy as jnp

        return jnp.einsum(formula, *operands)

    def make(name: str, family: str, extents: Extents) -> TileKernel:
        return TileKernel(
            name=name,
            family=family,
            extents=extents,
            operands=tuple(map(Operand, inputs.split(","))),
            output=output,
            tiled=tiled,
            combine=combine,
            epilogue=epilogue,
            extras=tuple(map(Operand, extras)),
            has_weights=has_weights,
        )

    return make


def map_kernel(
    inputs: str,
    output: str,
    tiled: str,
    function: Callable[..., Any],
    *,
    halo: Mapping[str, int] | None = None,
) -> Make:
    """Return a maker of kernels that apply `function` to blocks of "ab,b" and give "ab".

    Args:
        halo: how many elements the first operand has beyond the extent of an axis.
    """

    def make(name: str, family: str, extents: Extents) -> TileKernel:
        first, *others = inputs.split(",")
        operands = (Operand(first, halo or {}), *map(Operand, others))
        return TileKernel(name, family, extents, operands, output, tiled, function)

    return make


def convolution(
    height: int, width: int, *, dilation: int = 1, depthwise: bool = False, tiled: str
) -> Make:
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
        features = "c" if depthwise else "o"
        halo = {"h": dilation * (height - 1), "w": dilation * (width - 1)}
        return TileKernel(
            name=name,
            family=family,
            extents=extents | {"y": height, "x": width},
            operands=(Operand("nhwc", halo), Operand("yxc" if depthwise else "yxco")),
            output=f"nhw{features}",
            tiled=tiled,
            combine=combine,
            epilogue=blocks.bias_relu,
            extras=(Operand(features),),
            has_weights=True,
        )

    return make
