"""Blend trained models, and rank the configs of a program from Python (docs/guides/rank.md).

All errors are a `PipelineError` with a message of one line. A wrong call raises its subclass
`UsageError`.
"""

from common.errors import PipelineError, UsageError
from ensembles.ensemble import load_ranker
from ensembles.ranking.explain import Explanation, explain
from ensembles.ranking.layouts import NodeLayouts
from ensembles.ranking.program import NamedGraph, load_graph, load_graphs
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
