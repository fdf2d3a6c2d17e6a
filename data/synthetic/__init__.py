"""Synthetic data of the official format, with a known cost model behind its runtimes."""

from data.synthetic.layout_cost import layout_runtime_ns
from data.synthetic.layout_files import write_layout_graph
from data.synthetic.plan import PLANS, SyntheticPlan
from data.synthetic.sized import GraphSize, synthesize_sizes, write_sized
from data.synthetic.tile_cost import tile_runtime_ns
from data.synthetic.write import synthesize

__all__ = [
    "PLANS",
    "GraphSize",
    "SyntheticPlan",
    "layout_runtime_ns",
    "synthesize",
    "synthesize_sizes",
    "tile_runtime_ns",
    "write_layout_graph",
    "write_sized",
]
