"""HLO modules whose layouts are ranked, and the models that rank here."""

from pathlib import Path
from typing import Any

from data.tree import GraphFile, find_graphs
from tests.features.hlo_modules import ModuleBuilder

LAYOUTS, TILES = "layout:xla:random", "tile:xla"
LAYOUT_MODEL, TILE_MODEL = "cross_config_sage-seed0", "tile_linear-seed0"


def first_of(tree: Path, collection: str, split: str = "train") -> GraphFile:
    files = find_graphs(tree, splits=(split,))
    return next(file for file in files if file.collection.name == collection)


def write(path: Path, message: Any) -> Path:
    path.write_bytes(message.SerializeToString())
    return path


def dense_module(*, deepest: int = 2, last: str = "broadcast") -> Any:
    """Return a module of two matrix products and a reshape; the second product is batched.

    Args:
        deepest: rank of the last value, which is ones but for 24.
    """
    build = ModuleBuilder("dense")
    build.computation("main")
    left = build.add("parameter", shape=(16, 32))
    right = build.add("parameter", shape=(32, 24), parameter_number=1)
    product = build.add("dot", left, right, shape=(16, 24))
    product.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    product.dot_dimension_numbers.rhs_contracting_dimensions.append(0)
    batched = build.add("reshape", product, shape=(4, 4, 24))
    other = build.add("parameter", shape=(4, 24, 8), parameter_number=2)
    second = build.add("dot", batched, other, shape=(4, 4, 8))
    numbers = second.dot_dimension_numbers
    numbers.lhs_batch_dimensions.append(0)
    numbers.rhs_batch_dimensions.append(0)
    numbers.lhs_contracting_dimensions.append(2)
    numbers.rhs_contracting_dimensions.append(1)
    # In column-major order, the minor-most six dimensions do not show that there are more.
    build.add(last, second, shape=(*[1] * (deepest - 1), 24), order=tuple(range(deepest)))
    return build.module


def plain_module() -> Any:
    build = ModuleBuilder("plain")
    build.computation("main")
    build.add("negate", build.add("parameter", shape=(16, 32)), shape=(16, 32))
    return build.module
