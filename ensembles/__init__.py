"""Many trained models as one; and the functions for Python, to rank a program: docs/rank.md.

Everything that goes wrong with a file or a run is a `PipelineError` of one line; what the call
itself has wrong, such as an unknown collection, is a `UsageError`, which is one as well.
"""

from common.errors import PipelineError, UsageError
from ensembles.ranking.configs import NodeLayouts
from ensembles.ranking.explain import Explanation, explain
from ensembles.ranking.program import NamedGraph, load_graph, load_graphs
from ensembles.ranking.rank import Ranked, load_ranker, rank

__all__ = [
    "Explanation",
    "NamedGraph",
    "NodeLayouts",
    "PipelineError",
    "Ranked",
    "UsageError",
    "explain",
    "load_graph",
    "load_graphs",
    "load_ranker",
    "rank",
]
