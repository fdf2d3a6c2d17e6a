"""The dataset for PyTorch Geometric: datasets, and a transform that draws configs; docs/pyg.md."""

from models.pyg.datasets import TpuGraphsLayout, TpuGraphsTile
from models.pyg.graphs import TpuGraph, from_inputs, tpu_graph
from models.pyg.sampler import ConfigSampler

__all__ = [
    "ConfigSampler",
    "TpuGraph",
    "TpuGraphsLayout",
    "TpuGraphsTile",
    "from_inputs",
    "tpu_graph",
]
