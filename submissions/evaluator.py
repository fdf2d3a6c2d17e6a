"""Judge predicted scores with the interface of the evaluators of Open Graph Benchmark."""

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
    """Metrics of one collection.

    Args:
        name: Name of the collection, for example "layout:xla:random".
        rows: Distinct rows of the configs that count, (r,) by graph. None for all.

    Raises:
        UsageError: The collection does not exist.
    """

    def __init__(self, name: str, *, rows: Mapping[str, ArrayLike] | None = None) -> None:
        self.collection, self.rows = collection_named(name), rows

    def eval(self, predictions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Judge predicted scores by runtimes. Equal scores are ties, as in scipy's kendalltau.

        Args:
            predictions: `y_pred` has scores by graph, (c,) each, lower = predicted faster. `y_true`
                has runtimes by graph, (c,) each, of tile kernels divided by their normalizers.

        Returns:
            Means over graphs of the metrics of `score_graph`, `ci95` of the collection's metric,
            `n_graphs`, `per_graph` (metrics by graph) and `left_out` (reasons by graph).

        Raises:
            UsageError: `y_pred` or `y_true` is missing, a graph is only in one of them, or its rows
                are no rows of its configs.
            PipelineError: Values are no numbers or have another shape than (c,), a score is not
                finite, or runtimes are neither all above 0 nor all 0.
        """
        if not isinstance(predictions, Mapping) or not {"y_pred", "y_true"} <= predictions.keys():
            raise UsageError("Evaluator: expected y_pred and y_true, each values by graph name")
        scores_of, runtimes = predictions["y_pred"], predictions["y_true"]
        if unpaired_graphs := sorted(scores_of.keys() ^ runtimes.keys()):
            raise UsageError(
                f"Evaluator: graph '{unpaired_graphs[0]}' is only in one of y_pred and y_true"
            )
        graphs: dict[str, GraphMetrics] = {}
        left_out: dict[str, str] = {}
        # The interval depends on the order of the graphs, so the order is that of their names.
        for name in sorted(scores_of):
            scores, labels = self._checked(name, scores_of[name], runtimes[name])
            if reason := reason_to_leave_out(self.collection, labels):
                left_out[name] = reason
            else:
                ranking = ranking_from_scores(scores)
                graphs[name] = score_graph(self.collection, ranking, labels, scores)
        report = collection_report(self.collection, graphs)
        means: dict[str, Any] = {report.metric: None}
        for key in {key: None for graph in graphs.values() for key in graph if key != "n_configs"}:
            values = [value for graph in graphs.values() if (value := graph[key]) is not None]
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
                requirement = f"distinct integers from 0 to {len(scores) - 1}, at least one"
                raise UsageError(f"{where}: its rows are wrong; expected {requirement}")
            scores, runtime = scores[rows], runtime[rows]
        wrong = {"score": ~np.isfinite(scores)}
        # Runtimes that are all 0 are withheld.
        if runtime.any():
            wrong["runtime"] = ~(np.isfinite(runtime) & (runtime > 0))
        for quantity, is_wrong in wrong.items():
            if is_wrong.any():
                row = int(is_wrong.argmax())
                requirement = "a finite number" + " above 0" * (quantity == "runtime")
                raise PipelineError(f"{where}: {quantity} of config {row}: expected {requirement}")
        return scores, Labels(runtime)


def _numbers(values: Any, where: str, quantity: str) -> NDArray[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # NumPy has no bfloat16.
        values = values.double() if values.is_floating_point() else values
    array = np.asarray(values)
    if array.dtype.kind not in "iufb":
        raise PipelineError(f"{where}: its {quantity} are no real numbers; expected (c,) of them")
    return array
