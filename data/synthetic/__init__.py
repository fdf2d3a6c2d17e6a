"""Synthetic data of the official format, with a known cost model behind its runtimes."""

from data.synthetic.plans import (
    PLANS,
    GraphSize,
    PlannedGraph,
    SyntheticPlan,
    parse_size,
    published_graphs,
)
from data.synthetic.write import (
    missing_graphs,
    synthesize,
    synthesize_graphs,
    write_graphs,
    write_sized,
)

__all__ = [
    "PLANS",
    "GraphSize",
    "PlannedGraph",
    "SyntheticPlan",
    "missing_graphs",
    "parse_size",
    "published_graphs",
    "synthesize",
    "synthesize_graphs",
    "write_graphs",
    "write_sized",
]
