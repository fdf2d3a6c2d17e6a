"""From HLO modules and TpuGraphs' tuning protobufs to graphs in the dataset's format.

`featurize_module` is the way in for code; `features.featurize.featurize_files` for files.
"""

from features.hlo.graph import HloGraph, featurize_module

__all__ = ["HloGraph", "featurize_module"]
