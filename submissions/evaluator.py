"""Judge predicted scores as Open Graph Benchmark's evaluators do: one call, one dictionary."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from common.metrics import ranking_from_scores
from data.tree import collection_named
from submissions.score import Labels, Report, collection_report, reason_to_leave_out, score_graph


class Evaluator:
    """The metrics of one collection, "layout:xla:random" or another.

    Args:
        rows: by graph, which configs count, as `read_eval_indices` returns it; None = all.

    Raises:
        UsageError: there is no such collection.
    """

    def __init__(self, name: str, *, rows: Mapping[str, NDArray[np.int64]] | None = None) -> None:
        self.collection, self.rows = collection_named(name), rows

    def eval(self, predictions: Mapping[str, Mapping[str, Any]]) -> Report:
        """Judge predicted scores by runtimes; equal scores are ties, as for scipy's kendalltau.

        Args:
            predictions: by graph name, `y_pred`, scores (c,), lower = predicted faster, and
                `y_true`, runtimes (c,), of tile kernels each over its normalizer.

        Returns:
            Means over graphs of all metrics that `score_graph` gives; `ci95` of the collection's
            own; `n_graphs`; `per_graph`, metrics by graph; `left_out`, reasons by graph.

        Raises:
            UsageError: `y_pred` or `y_true` is missing, or a graph is in one alone, or unknown.
            PipelineError: other shapes than (c,), a score that is not finite, or runtimes neither
                all above 0 nor all 0; the line names the graph.
        """
        if not {"y_pred", "y_true"} <= predictions.keys():
            raise UsageError("Evaluator: expected y_pred and y_true, each values by graph name")
        predicted, measured = predictions["y_pred"], predictions["y_true"]
        if odd := sorted(predicted.keys() ^ measured.keys()):
            raise UsageError(f"Evaluator: graph '{odd[0]}' is not in both y_pred and y_true")
        graphs: dict[str, Report] = {}
        left_out: dict[str, str] = {}
        for name in predicted:
            scores, labels = self._checked(name, predicted[name], measured[name])
            if reason := reason_to_leave_out(self.collection, labels):
                left_out[name] = reason
            else:
                ranking = ranking_from_scores(scores)
                graphs[name] = score_graph(self.collection, ranking, labels, scores)
        report = collection_report(self.collection, graphs)
        means: Report = {report["metric"]: None}
        for key in {key: None for own in graphs.values() for key in own if key != "n_configs"}:
            values = [own[key] for own in graphs.values() if own[key] is not None]
            means[key] = float(np.mean(values)) if values else None
        kept = {key: report[key] for key in ("ci95", "n_graphs", "per_graph")}
        return means | kept | {"left_out": left_out}

    def _checked(self, name: str, scores: Any, runtime: Any) -> tuple[NDArray[Any], Labels]:
        where = f"Evaluator: {self.collection.name}:{name}"
        scores, runtime = _array(scores), _array(runtime)
        if scores.ndim != 1 or scores.shape != runtime.shape or not len(scores):
            raise PipelineError(
                f"{where}: scores {scores.shape}, runtimes {runtime.shape}; expected (c,) of both"
            )
        if self.rows is not None:
            rows = self.rows.get(name)
            if rows is None or rows.max() >= len(scores):
                raise UsageError(f"{where}: its rows are not known, or not all below {len(scores)}")
            scores, runtime = scores[rows], runtime[rows]
        is_measured = np.isfinite(runtime).all() and (runtime > 0).all()
        if not np.isfinite(scores).all() or (runtime.any() and not is_measured):
            raise PipelineError(f"{where}: expected finite scores, and finite runtimes above 0")
        return scores, Labels(runtime)


def _array(values: Any) -> NDArray[Any]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
