"""Score rankings by measured runtimes, for the `collections` of report.json.

A layout graph with one config or equal runtimes has no Kendall tau, and is left out of the mean.
Tile kernels of that kind count, as in the competition: each of their configs is the best one.

Unknown numbers are None and not nan, because the report is strict JSON.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.metrics import (
    METRICS,
    TILE_PICKS,
    family_means,
    interval_of,
    kendall_tau,
    ordered_pair_accuracy,
    slowdown_at_k,
    tile_score,
)
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import sample_rows
from data.labels import Labels
from data.tree import COLLECTIONS, Collection, GraphFile
from submissions.check import n_picks, ranking_faults
from submissions.run_report import CollectionReport, GraphMetrics, LeftOut, RunReport

SLOWDOWN_PICKS = (1, 5, 10, 100)
ERROR_PICKS = (1, 5, 10)
DIVERSIFIED = "diversified_slowdown@5"
# An interval over fewer graphs is too narrow.
FEW_GRAPHS = 20


def cut_to_samples(
    files: Sequence[GraphFile],
    rankings: Mapping[str, NDArray[np.int64]],
    labels: Mapping[str, Labels],
) -> tuple[dict[str, NDArray[np.int64]], dict[str, Labels]]:
    """Restrict layout graphs to the sample of configs that their rankings cover (`sample_rows`).

    A ranking of other configs stays, and `score_submission` raises an error for it.
    """
    cut_rankings, cut_labels = dict(rankings), dict(labels)
    for file in files:
        name, kind = file.submission_id, file.collection.kind
        n_ranked, n_configs = len(rankings.get(name, ())), len(labels[name].runtime_ns)
        if kind == "layout" and 0 < n_ranked < n_configs:
            rows = sample_rows(read_graph(file), n_ranked)
            if np.array_equal(np.sort(rankings[name]), rows):
                cut_rankings[name] = np.searchsorted(rows, rankings[name])
                cut_labels[name] = labels[name].only(rows)
    return cut_rankings, cut_labels


def score_submission(
    rankings: Mapping[str, NDArray[np.int64]],
    labels: Mapping[str, Labels],
    *,
    ceilings: Mapping[str, float] | None = None,
    to_measure: Mapping[str, NDArray[np.int64]] | None = None,
    n_configs: Mapping[str, int] | None = None,
    programs: Mapping[str, str] | None = None,
) -> RunReport:
    """Score rankings per graph and per collection.

    A collection without any row in `rankings` is not judged. All arguments are by submission ID.

    Args:
        rankings: Config indices, (m,) int64, sorted by score. A layout graph needs all c, and a
            tile kernel at least min(5, c).
        labels: Runtimes. Those that are all 0 count as withheld.
        ceilings: Kendall's tau between two measurements of the same configs, nan if unknown.
        to_measure: Five diversified configs, which decide the tile score instead of the first five.
        n_configs: Number of configs of each graph's file, which may have more than `labels`.
        programs: Program of a graph whose name hides it.
    """
    collections: dict[str, CollectionReport] = {}
    left_out: list[LeftOut] = []
    for collection in COLLECTIONS:
        prefix, graphs = f"{collection.name}:", dict[str, GraphMetrics]()
        answered = any(name.startswith(prefix) for name in rankings)
        for name in sorted(name for name in labels if name.startswith(prefix)):
            if reason := reason_to_leave_out(collection, labels[name], answered=answered):
                left_out.append(LeftOut(graph=name, reason=reason))
                continue
            ranking = _fitting(name, rankings.get(name), len(labels[name].runtime_ns))
            five = None if to_measure is None else to_measure[name]
            metrics = score_graph(collection, ranking, labels[name], to_measure=five)
            graphs[name.removeprefix(prefix)] = metrics
        report = collection_report(collection, graphs, ceilings)
        ids = [f"{prefix}{graph}" for graph in graphs]
        if programs:
            hidden = {name.removeprefix(prefix): programs.get(name) for name in ids}
            report = report.changed(programs={g: name for g, name in hidden.items() if name})
        n_judged = sum(len(labels[name].runtime_ns) for name in ids)
        n_all = sum(n_configs[name] for name in ids) if n_configs else 0
        if n_judged < n_all:
            report = report.changed(judged_on=f"{n_judged:,} of {n_all:,} configs")
        collections[collection.name] = report
    values = [part.value for part in collections.values() if part.value is not None]
    score = float(np.mean(values)) if values else None
    return RunReport(score=score, collections=collections, left_out=left_out)


def _fitting(name: str, ranking: NDArray[np.int64] | None, n_configs: int) -> NDArray[np.int64]:
    """Return a ranking, or raise a PipelineError if it does not fit its graph."""
    n_indices = n_picks(name, n_configs)
    if ranking is None:
        raise PipelineError(f"submission: {name}: row is missing; expected {n_indices} indices")
    if name.startswith("tile:"):
        n_indices = max(n_indices, len(ranking))
    if faults := ranking_faults(ranking, n_configs, n_indices):
        raise PipelineError(f"submission: {name}: {'; '.join(faults)}")
    return ranking


def score_graph(
    collection: Collection,
    ranking: NDArray[np.int64],
    labels: Labels,
    scores: NDArray[Any] | None = None,
    to_measure: NDArray[np.int64] | None = None,
) -> GraphMetrics:
    """Return all metrics of one graph of c configs.

    Args:
        ranking: Distinct config indices, (m,) int64, predicted fastest first.
        scores: Scores behind the ranking, (c,). With them, equal scores are ties in `kendall_tau`
            and `opa`.
        to_measure: Five diversified configs, which decide the tile score.

    Returns:
        `kendall_tau` and `opa` are None if m < c or all runtimes are equal. `slowdown@K` is None if
        m < K and m < c. `diversified_slowdown@5` needs `to_measure`. Tile kernels also have
        `tile_score` and `topK_error`.
    """
    runtime, graph = labels.runtime, GraphMetrics()
    position = np.argsort(ranking) if scores is None else scores
    for name, metric in (("kendall_tau", kendall_tau), ("opa", ordered_pair_accuracy)):
        is_whole = len(ranking) == len(runtime)
        graph[name] = _or_none(metric(position, runtime)) if is_whole else None
    for k in SLOWDOWN_PICKS:
        is_known = len(ranking) >= min(k, len(runtime))
        graph[f"slowdown@{k}"] = slowdown_at_k(ranking, runtime, k) if is_known else None
    if collection.kind == "tile":
        graph["tile_score"] = tile_score(ranking if to_measure is None else to_measure, runtime)
        for k in ERROR_PICKS:
            is_known = len(ranking) >= min(k, len(runtime))
            graph[f"top{k}_error"] = slowdown_at_k(ranking, runtime, k) - 1 if is_known else None
    if to_measure is not None:
        graph[DIVERSIFIED] = slowdown_at_k(to_measure, runtime, TILE_PICKS)
    graph["n_configs"] = len(runtime)
    return graph


def reason_to_leave_out(
    collection: Collection, labels: Labels, *, answered: bool = True
) -> str | None:
    """Return the reason why a graph cannot be judged, or None if it can."""
    if not labels.is_labelled:
        return "runtimes are withheld"
    if not answered:
        return "the submission has no row of this collection"
    if collection.kind == "layout" and (labels.runtime_ns == labels.runtime_ns[0]).all():
        is_single = len(labels.runtime_ns) == 1
        return "one config gives no order" if is_single else "constant runtimes give no order"
    return None


def collection_report(
    collection: Collection,
    graphs: Mapping[str, GraphMetrics],
    ceilings: Mapping[str, float] | None = None,
) -> CollectionReport:
    """Summarise the metrics of a collection's graphs, with `ceilings` as in `score_submission`."""
    metric, is_tile = METRICS[collection.kind], collection.kind == "tile"
    values = [float(graph[metric] or 0) for graph in graphs.values()]
    # Each graph is its own family, so the bootstrap is over graphs.
    keys = [f"{place:09d}" for place in range(len(values))]
    names = [f"top{k}_error" if is_tile else f"slowdown@{k}" for k in ERROR_PICKS]
    names += [DIVERSIFIED] * any(DIVERSIFIED in graph for graph in graphs.values())
    means: dict[str, Any] = {}
    for name in names:
        column = [value for graph in graphs.values() if (value := graph[name]) is not None]
        means[name] = float(np.mean(column)) if column and len(column) == len(graphs) else None
    per_graph = dict(graphs)
    if ceilings is not None and not is_tile:
        taus = {g: _or_none(ceilings.get(f"{collection.name}:{g}", math.nan)) for g in graphs}
        known_taus = [tau for tau in taus.values() if tau is not None]
        means["noise_ceiling"] = float(np.median(known_taus)) if known_taus else None
        per_graph = {g: graphs[g] | {"noise_ceiling": taus[g]} for g in graphs}
    return CollectionReport(
        metric=metric,
        value=float(np.mean(values)) if values else None,
        ci95=interval_of(family_means(np.array(values), keys)) if len(keys) > 1 else None,
        n_graphs=len(values),
        per_graph=per_graph,
        **means,
    )


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def remarks_on(report: RunReport) -> list[str]:
    """Return at most four warnings about the scores of a report, each for all its collections."""
    partial, beaten, slower, small = (list[str]() for _ in range(4))
    for name, part in report.collections.items():
        if part.value is None:
            continue
        if part.judged_on:
            partial.append(f"{name} ({part.judged_on})")
        members = report.models[name].member_values if name in report.models else {}
        rivals = {**members, "the baseline": part.baseline}
        ahead = {
            rival: value
            for rival, value in rivals.items()
            if value is not None and round(value, 4) > round(part.value, 4)
        }
        if ahead:
            best = max(ahead, key=lambda rival: ahead[rival])
            beaten.append(f"{name} {part.value:.4f} ({best} {ahead[best]:.4f})")
        if picks := part.slowdown_curve and part.slowdown_curve.slower_than_baseline(TILE_PICKS):
            slower.append(f"{name} (K = {', '.join(map(str, picks))})")
        if part.ci95 is not None and part.n_graphs < FEW_GRAPHS:
            small.append(f"{name} ({part.n_graphs})")
    warnings = {
        "judged on some configs of a graph only": partial,
        "lower than one member or the baseline alone": beaten,
        "first K configs by score slower than those of the baseline": slower,
        "interval too narrow because of few graphs": small,
    }
    return [f"{text}: {', '.join(names)}" for text, names in warnings.items() if names]
