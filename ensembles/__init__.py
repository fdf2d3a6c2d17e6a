"""Many trained models as one; and the functions for Python, to rank a program: docs/guides/rank.md.

What goes wrong is a `PipelineError` of one line; a wrong call is a `UsageError`, which is one too.
"""

from common.errors import PipelineError, UsageError
from ensembles.ensemble import load_ranker
from ensembles.ranking.explain import Explanation, explain
from ensembles.ranking.program import NamedGraph, NodeLayouts, load_graph, load_graphs
from ensembles.ranking.rank import Ranked, rank

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
