"""Synthetic data of the official format, with a known cost model behind its runtimes."""

from data.synthetic.published import published_graphs, synthesize_published
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
    "parse_size",
    "published_graphs",
    "synthesize",
    "synthesize_published",
    "synthesize_sizes",
    "write_sized",
]
