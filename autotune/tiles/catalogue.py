"""The catalogue of fused kernels, kernels.tsv: several shapes of each family.

A whole kernel takes about 0.05 to 5 ms on one core of a CPU. A letter of kernels.tsv is an axis
(`autotune.tiles.kernel`). Many families are held out: only hundreds of kernels can show a
difference between two rankers. The columns are:

- family: kernels that differ only in their sizes
- split: split of the family, from a random draw before the first measurement
- axes: letters of the sizes, in their order
- formula: axes of the operands and of the output
- tiled: axes whose tile size is chosen
- combine: "einsum" of the formula, or the name of a function
- epilogue: name of the function that follows, or empty
- extras: axes of the other arguments of the epilogue
- weights: whether the second operand is a weight
- fixed: axes of one size in all kernels of the family, and the size
- halo: elements that the first operand has beyond the extent of an axis
- sizes: one entry for each kernel
"""

import csv
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from autotune.measure.worker import one_line
from autotune.programs.catalogue import named_object
from autotune.tiles.kernel import Operand, TileKernel
from common.errors import PipelineError, UsageError

TABLE = Path(__file__).with_name("kernels.tsv")


@cache
def families() -> dict[str, dict[str, str]]:
    """Return the rows of kernels.tsv by family."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return {row["family"]: row for row in csv.DictReader(stream, delimiter="\t")}


@cache
def catalogue() -> dict[str, TileKernel]:
    """Return all kernels by name, for example "matmul_m128_k256_n512"."""
    kernels = {}
    for family, row in families().items():
        for sizes in row["sizes"].split():
            extents = dict(zip(row["axes"], map(int, sizes.split("x")), strict=True))
            name = "_".join([family, *(f"{axis}{size}" for axis, size in extents.items())])
            kernels[name] = make_kernel(family, extents, name)
    return kernels


def find_kernel(program: str) -> TileKernel:
    """Return a kernel of the catalogue, or a user's kernel.

    Args:
        program: Name in the catalogue, or "module:name" of a TileKernel or a function that returns
            one.

    Raises:
        UsageError: "module:name" is no kernel.
    """
    if ":" not in program:
        kernels = catalogue()
        if program not in kernels:
            raise PipelineError(
                f"--program {program}: no such kernel; --list names all {len(kernels)}; or give "
                "module:name of your own"
            )
        return kernels[program]
    target = named_object(program)
    try:
        kernel = target() if callable(target) and not isinstance(target, TileKernel) else target
    # The kernel itself has a fault.
    except PipelineError:
        raise
    except Exception as error:
        raise UsageError(
            f"--program {program}: cannot be called without arguments ({one_line(error)}); "
            "expected a function that returns a TileKernel; a JAX function is of --kind layout"
        ) from error
    if not isinstance(kernel, TileKernel):
        raise UsageError(
            f"--program {program}: is a {type(kernel).__name__}; expected a TileKernel, "
            "or a function without arguments that returns one: see docs/guides/measure.md"
        )
    return kernel


def make_kernel(family: str, extents: Mapping[str, int], name: str) -> TileKernel:
    """Return a kernel of a family. Its sizes need not be in the catalogue."""
    row = families()[family]
    inputs, output = row["formula"].split("->")
    first, *others = inputs.split(",")
    sizes = {**extents, **_numbers(row["fixed"])}
    if family == "rotary":
        sizes["e"] = sizes["d"] // 2
    combine = partial(_einsum, row["formula"]) if row["combine"] == "einsum" else None
    options: dict[str, Any] = {"epilogue": _function(row["epilogue"])} if row["epilogue"] else {}
    return TileKernel(
        name=name,
        family=family,
        extents=sizes,
        operands=(Operand(first, _numbers(row["halo"])), *map(Operand, others)),
        output=output,
        tiled=row["tiled"],
        combine=combine or _function(row["combine"]),
        extras=tuple(map(Operand, row["extras"].split())),
        has_weights=row["weights"] == "yes",
        **options,
    )


def _numbers(text: str) -> dict[str, int]:
    return {axis: int(number) for axis, number in re.findall(r"([a-z])(\d+)", text)}


def _einsum(formula: str, *blocks: Any) -> Any:
    from jax import numpy as jnp

    return jnp.einsum(formula, *blocks)


def _function(name: str) -> Callable[..., Any]:
    def call(*blocks: Any) -> Any:
        from autotune.tiles.functions import FUNCTIONS

        return FUNCTIONS[name](*blocks)

    return call
