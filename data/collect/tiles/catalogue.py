"""The catalogue of fused kernels to measure, by family, with several shapes each.

Whole kernels take about 0.05 to 5 ms on one core of a CPU, long enough to time and short enough
to time often.
"""

from functools import cache

from data.collect.tiles.contractions import CONVOLUTIONS, PRODUCTS
from data.collect.tiles.family import Family
from data.collect.tiles.kernel import TileKernel
from data.collect.tiles.maps import ELEMENTWISE, MOVES, NORMALISATIONS, REDUCTIONS, STENCILS

FAMILIES: dict[str, Family] = {
    **PRODUCTS,
    **CONVOLUTIONS,
    **NORMALISATIONS,
    **REDUCTIONS,
    **MOVES,
    **ELEMENTWISE,
    **STENCILS,
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
