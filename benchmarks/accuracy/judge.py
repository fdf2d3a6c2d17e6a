"""The metrics of one graph as a ranker orders its configs."""

from typing import Any

import numpy as np

from common.errors import PipelineError
from data.audit.noise import measure_noise
from data.graphs.distinct import distinct_configs
from data.graphs.graph import Graph, TileGraph
from models.training.jobs import Ranker
from submissions.labels import Labels
from submissions.score import score_graph


def judge(ranker: Ranker, graph: Graph) -> dict[str, Any]:
    """Return all metrics of one graph, as a submission is judged.

    Raises:
        PipelineError: a score is not finite, or the runtimes give no order.
    """
    scores = ranker.score(graph)
    if not np.isfinite(scores).all():
        raise PipelineError(f"{graph.file.path}: a config's score is not finite")
    ranking = np.argsort(scores, kind="stable")
    normalizers = graph.runtime_normalizers if isinstance(graph, TileGraph) else None
    metrics = score_graph(graph.file.collection, ranking, Labels(graph.runtime_ns, normalizers))
    if metrics["kendall_tau"] is None:
        raise PipelineError(f"{graph.file.path}: its runtimes give no order; it cannot be judged")
    return metrics


def facts_of(graph: Graph) -> dict[str, Any]:
    """Return how many distinct configs a graph has, and what those measured twice agree to."""
    first, group = distinct_configs(graph)
    noise = measure_noise(graph.runtime_ns, group)
    found = None
    if noise is not None and np.isfinite(noise.tau):
        found = {"n_repeated": noise.n_repeated, "tau": noise.tau, "best_tau": noise.best_tau}
    return {"n_distinct": len(first), "noise": found}
