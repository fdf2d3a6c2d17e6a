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
        UsageError: there is no such collection, or `rows` are no dictionary.
    """

    def __init__(self, name: str, *, rows: Mapping[str, ArrayLike] | None = None) -> None:
        if rows is not None and not isinstance(rows, Mapping):
            raise UsageError(f"Evaluator: rows are a {type(rows).__name__}; expected a dict")
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
            UsageError: `y_pred` or `y_true` is missing or empty, a graph is in one alone, or its
                rows are none of its configs.
            PipelineError: no numbers, other shapes than (c,), a score that is not finite, or
                runtimes neither all above 0 nor all 0; the line names the graph.
        """
        if not isinstance(predictions, Mapping) or not {"y_pred", "y_true"} <= predictions.keys():
            raise UsageError("Evaluator: expected y_pred and y_true, each values by graph name")
        predicted, measured = predictions["y_pred"], predictions["y_true"]
        for key, other in (("y_pred", predicted), ("y_true", measured)):
            if not isinstance(other, Mapping):
                raise UsageError(f"Evaluator: {key} is a {type(other).__name__}; expected a dict")
        if not predictions["y_pred"] and not predictions["y_true"]:
            raise UsageError("Evaluator: y_pred and y_true hold no graph; expected one at least")
        for has, lacks in (("y_pred", "y_true"), ("y_true", "y_pred")):
            if missing := sorted(predictions[has].keys() - predictions[lacks].keys()):
                raise UsageError(f"Evaluator: {lacks} has no graph '{missing[0]}', {has} has it")
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
            if name not in self.rows:
                raise UsageError(f"{where}: `rows` has no such graph; expected its row numbers")
            rows, n = _numbers(self.rows[name], where, "rows"), len(scores)
            is_list = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) > 0
            if not is_list or rows.min() < 0 or rows.max() >= n or len(set(rows)) < len(rows):
                expected = f"different integers from 0 to {n - 1}, one at least"
                raise UsageError(f"{where}: its rows are not what is expected: {expected}")
            scores, runtime = scores[rows.astype(np.int64)], runtime[rows.astype(np.int64)]
        wrong = {"score": ~np.isfinite(scores)}
        if runtime.any():  # else it is withheld
            wrong["runtime"] = ~(np.isfinite(runtime) & (runtime > 0))
        for what, is_wrong in wrong.items():
            if is_wrong.any():
                row = int(is_wrong.argmax())
                value, expected = (scores if what == "score" else runtime)[row], "a finite number"
                above = " above 0" * (what == "runtime")
                raise PipelineError(f"{where}: {what} {row} is {value}; expected {expected}{above}")
        return scores, Labels(runtime)


def _numbers(values: Any, where: str, what: str) -> NDArray[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values  # NumPy has no bfloat16
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iufb":
        raise PipelineError(f"{where}: its {what} are no real numbers; expected (c,) of them")
    return array
