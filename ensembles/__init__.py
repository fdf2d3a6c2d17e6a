"""Many trained models as one; and the functions for Python, to rank the configs of a program.

    from ensembles import load_graph, load_ranker, rank

    ranker = load_ranker("runs/first", collection="layout:xla:random")
    graph = load_graph("module.hlo.pb")
    ranked = rank(ranker, graph, configs=graph.candidates(200), top=5)
    for entry in ranked.best():
        print(entry["rank"], entry["config"], entry["score"])
    for node in ranked.layouts(ranked.order[0]):
        print(node.name, node.tensors["output"])  # minor to major; None = the compiler's choice

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
