"""Judge predicted scores as Open Graph Benchmark's evaluators do: one call, one dictionary."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from common.errors import PipelineError, UsageError
from common.metrics import ranking_from_scores
from data.labels import Labels
from data.tree import collection_named
from submissions.run_report import GraphMetrics
from submissions.score import collection_report, reason_to_leave_out, score_graph


class Evaluator:
    """The metrics of one collection, "layout:xla:random" or another.

    Args:
        rows: by graph, the row numbers (r,) of the configs that count, none twice; None = all.

    Raises:
        UsageError: there is no such collection.
    """

    def __init__(self, name: str, *, rows: Mapping[str, ArrayLike] | None = None) -> None:
        self.collection, self.rows = collection_named(name), rows

    def eval(self, predictions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Judge predicted scores by runtimes; equal scores are ties, as for scipy's kendalltau.

        Args:
            predictions: by graph name, `y_pred`, scores (c,), lower = predicted faster, and
                `y_true`, runtimes (c,), of tile kernels each over its normalizer.

        Returns:
            Means over graphs of all metrics that `score_graph` gives; `ci95` of the collection's
            own, drawn from graphs in order of name; `n_graphs`; `per_graph`, metrics by graph;
            `left_out`, reasons by graph.

        Raises:
            UsageError: `y_pred` or `y_true` is missing, a graph is in one alone, or its rows are
                none of its configs.
            PipelineError: no numbers, other shapes than (c,), a score that is not finite, or
                runtimes neither all above 0 nor all 0; the line names the graph.
        """
        if not isinstance(predictions, Mapping) or not {"y_pred", "y_true"} <= predictions.keys():
            raise UsageError("Evaluator: expected y_pred and y_true, each values by graph name")
        predicted, measured = predictions["y_pred"], predictions["y_true"]
        if unmatched := sorted(predicted.keys() ^ measured.keys()):
            raise UsageError(f"Evaluator: graph '{unmatched[0]}' is in y_pred or in y_true alone")
        graphs: dict[str, GraphMetrics] = {}
        left_out: dict[str, str] = {}
        for name in sorted(predicted):  # so that no order of the graphs decides the interval
            scores, labels = self._checked(name, predicted[name], measured[name])
            if reason := reason_to_leave_out(self.collection, labels):
                left_out[name] = reason
            else:
                ranking = ranking_from_scores(scores)
                graphs[name] = score_graph(self.collection, ranking, labels, scores)
        report = collection_report(self.collection, graphs)
        means: dict[str, Any] = {report.metric: None}
        for key in {key: None for own in graphs.values() for key in own if key != "n_configs"}:
            values = [value for own in graphs.values() if (value := own[key]) is not None]
            means[key] = float(np.mean(values)) if values else None
        interval = None if report.ci95 is None else list(report.ci95)
        facts = {"ci95": interval, "n_graphs": report.n_graphs, "per_graph": report.per_graph}
        return means | facts | {"left_out": left_out}

    def _checked(self, name: str, scores: Any, runtime: Any) -> tuple[NDArray[Any], Labels]:
        where = f"Evaluator: {self.collection.name}:{name}"
        scores, runtime = _numbers(scores, where, "scores"), _numbers(runtime, where, "runtimes")
        if scores.ndim != 1 or scores.shape != runtime.shape or not len(scores):
            raise PipelineError(
                f"{where}: scores {scores.shape}, runtimes {runtime.shape}; expected (c,) of both"
            )
        if self.rows is not None:
            rows = np.asarray(self.rows[name])
            if (
                not len(np.unique(rows)) == len(rows) > 0
                or not np.isin(rows, range(len(scores))).all()
            ):
                expected = f"different integers from 0 to {len(scores) - 1}, one at least"
                raise UsageError(f"{where}: its rows are not what is expected: {expected}")
            scores, runtime = scores[rows], runtime[rows]
        wrong = {"score": ~np.isfinite(scores)}
        if runtime.any():  # else it is withheld
            wrong["runtime"] = ~(np.isfinite(runtime) & (runtime > 0))
        for what, is_wrong in wrong.items():
            if is_wrong.any():
                row = int(is_wrong.argmax())
                expected = "a finite number" + " above 0" * (what == "runtime")
                raise PipelineError(f"{where}: {what} of config {row}: expected {expected}")
        return scores, Labels(runtime)


def _numbers(values: Any, where: str, what: str) -> NDArray[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values  # NumPy has no bfloat16
    array = np.asarray(values)
    if array.dtype.kind not in "iufb":
        raise PipelineError(f"{where}: its {what} are no real numbers; expected (c,) of them")
    return array
