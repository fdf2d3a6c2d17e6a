"""Synthetic data of the official format, with a known cost model behind its runtimes."""

from data.synthetic.costs import layout_cost, tile_runtime_ns
from data.synthetic.write import (
    PLANS,
    GraphSize,
    SyntheticPlan,
    parse_size,
    synthesize,
    synthesize_sizes,
    write_sized,
)

__all__ = [
    "PLANS",
    "GraphSize",
    "SyntheticPlan",
    "layout_cost",
    "parse_size",
    "synthesize",
    "synthesize_sizes",
    "tile_runtime_ns",
    "write_sized",
]
