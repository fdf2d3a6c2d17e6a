"""From HLO modules and TpuGraphs' tuning protobufs to graphs in the dataset's format.

`featurize_module` is the way in for code; `data.hlo.write.featurize_files` for files.
"""

from data.hlo.graph import HloGraph, featurize_module

__all__ = ["HloGraph", "featurize_module"]
