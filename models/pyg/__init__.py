"""The dataset for PyTorch Geometric: datasets, and a transform that draws configs; docs/pyg.md."""

from models.pyg.datasets import TpuGraphsLayout, TpuGraphsTile
from models.pyg.graphs import ConfigSampler, TpuGraph, from_inputs, tpu_graph

__all__ = [
    "ConfigSampler",
    "TpuGraph",
    "TpuGraphsLayout",
    "TpuGraphsTile",
    "from_inputs",
    "tpu_graph",
]
