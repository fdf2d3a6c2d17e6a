"""Blend trained models, and rank the configs of a program from Python (docs/guides/rank.md).

All errors are a `PipelineError` with a message of one line. A wrong call raises its subclass
`UsageError`. The other names are imported at their first use, because training needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from common.errors import PipelineError, UsageError

if TYPE_CHECKING:
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

_MODULES = {
    "ensembles.ensemble": ("load_ranker",),
    "ensembles.ranking.explain": ("Explanation", "explain"),
    "ensembles.ranking.layouts": ("NodeLayouts",),
    "ensembles.ranking.program": ("NamedGraph", "load_graph", "load_graphs"),
    "ensembles.ranking.rank": ("Ranked", "rank"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
