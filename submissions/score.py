"""Score rankings by measured runtimes: the `collections` of report.json.

A graph of a layout collection whose runtimes give no order (one config, or all runtimes equal)
has no Kendall tau; it is left out of the mean and listed. Tile kernels of that kind count, as
they do in the competition: any pick of theirs is the best one.

Every number that cannot be had is None, never nan, so that the report is strict JSON.
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
FEW_GRAPHS = 20  # an interval over fewer is too narrow


def cut_to_samples(
    files: Sequence[GraphFile],
    rankings: Mapping[str, NDArray[np.int64]],
    labels: Mapping[str, Labels],
) -> tuple[dict[str, NDArray[np.int64]], dict[str, Labels]]:
    """Cut layout graphs with rankings of a sample to the sample, by places in the sample.

    The number of ranked configs decides which configs are in the sample, see
    `data.graphs.graph.sample_rows`. A ranking of other configs stays, so that it is refused later.

    Args:
        files: Graphs, those of layouts at least.
        rankings: Config indices by submission ID.
        labels: Runtimes of all configs, by submission ID.

    Returns:
        Rankings and labels of the configs that are judged.

    Raises:
        PipelineError: A file is damaged.
    """
    own, known = dict(rankings), dict(labels)
    for file in files:
        name, kind = file.submission_id, file.collection.kind
        n_ranked, n_configs = len(own.get(name, ())), len(known[name].runtime_ns)
        if kind == "layout" and 0 < n_ranked < n_configs:
            rows = sample_rows(read_graph(file), n_ranked)
            if np.array_equal(np.sort(own[name]), rows):
                own[name] = np.searchsorted(rows, own[name])
                known[name] = known[name].only(rows)
    return own, known


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

    A collection with labels but without any row in `rankings` is not judged: its value is None,
    and its graphs are listed as left out.

    Args:
        rankings: (m,) int64 config indices by submission ID, sorted by score: all c of a layout
            graph, at least min(5, c) of a tile kernel.
        labels: Runtimes by submission ID. Runtimes that are all 0 count as withheld.
        ceilings: Kendall tau between two measurements of the same configs, by submission ID. nan,
            or no entry, if it is not known. Layouts have `noise_ceiling` only with this argument.
        to_measure: Five diversified configs by submission ID, as the tile rows of a submission have
            them. The tile score is theirs then, and not that of the first five of the ranking.
        n_configs: Number of configs of each graph's file, by submission ID. `judged_on` is set for
            collections with more configs than `labels`.
        programs: Program of a graph whose name hides it, by submission ID.

    Returns:
        `score`, `collections` and `left_out`. Tiles have the means of `top1_error`, `top5_error`
        and `top10_error`, layouts those of `slowdown@1`, `@5` and `@10`. A mean is None if a row
        has too few indices.

    Raises:
        PipelineError: A ranking does not fit its graph, or a collection is answered in part. The
            line names the ID.
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
            n_own, ranking = len(labels[name].runtime_ns), rankings.get(name)
            wanted = n_picks(collection.name, n_own)
            if ranking is None:
                raise PipelineError(
                    f"submission: {name}: row is missing; expected {wanted} indices"
                )
            if collection.kind == "tile":
                wanted = max(wanted, len(ranking))
            if faults := ranking_faults(ranking, n_own, wanted):
                raise PipelineError(f"submission: {name}: {'; '.join(faults)}")
            five = None if to_measure is None else to_measure[name]
            metrics = score_graph(collection, ranking, labels[name], to_measure=five)
            graphs[name.removeprefix(prefix)] = metrics
        report = collection_report(collection, graphs, ceilings)
        if programs:
            known = {graph: programs.get(f"{prefix}{graph}") for graph in graphs}
            report = report.changed(programs={g: name for g, name in known.items() if name})
        n_judged = sum(len(labels[f"{prefix}{graph}"].runtime_ns) for graph in graphs)
        n_all = sum(n_configs[f"{prefix}{graph}"] for graph in graphs) if n_configs else 0
        if n_judged < n_all:
            report = report.changed(judged_on=f"{n_judged:,} of {n_all:,} configs")
        collections[collection.name] = report
    values = [part.value for part in collections.values() if part.value is not None]
    score = float(np.mean(values)) if values else None
    return RunReport(score=score, collections=collections, left_out=left_out)


def score_graph(
    collection: Collection,
    ranking: NDArray[np.int64],
    labels: Labels,
    scores: NDArray[Any] | None = None,
    to_measure: NDArray[np.int64] | None = None,
) -> GraphMetrics:
    """Return all metrics of one graph of c configs.

    Args:
        ranking: (m,) int64 distinct config indices, predicted fastest first.
        scores: (c,) that the ranking was made of: equal ones then count as ties in `kendall_tau`
            and `opa`, which a ranking alone breaks.
        to_measure: five diversified configs, whose tile score counts.

    Returns:
        `kendall_tau` and `opa` (None where m < c or the runtimes are all equal), `slowdown@K`
        (None where m < K and m < c), `diversified_slowdown@5` if `to_measure` is given, and
        `n_configs`; of tile kernels also `tile_score` and `topK_error`.
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
    """Say why a graph cannot be judged; None if it can."""
    if not labels.is_labelled:
        return "runtimes are withheld"
    if not answered:
        return "the submission has no row of this collection"
    if collection.kind == "layout" and (labels.runtime_ns == labels.runtime_ns[0]).all():
        what = "one config gives" if len(labels.runtime_ns) == 1 else "constant runtimes give"
        return f"{what} no order"
    return None


def collection_report(
    collection: Collection,
    graphs: Mapping[str, GraphMetrics],
    ceilings: Mapping[str, float] | None = None,
) -> CollectionReport:
    """Summarise the metrics of a collection's graphs.

    Args:
        collection: The collection.
        graphs: Metrics by graph, from `score_graph`.
        ceilings: See `score_submission`.
    """
    metric, is_tile = METRICS[collection.kind], collection.kind == "tile"
    values = [float(graph[metric] or 0) for graph in graphs.values()]
    each = [f"{place:09d}" for place in range(len(values))]  # graphs are drawn one by one
    names = [f"top{k}_error" if is_tile else f"slowdown@{k}" for k in ERROR_PICKS]
    names += [DIVERSIFIED] * any(DIVERSIFIED in graph for graph in graphs.values())
    means: dict[str, Any] = {}
    for name in names:
        found = [value for graph in graphs.values() if (value := graph[name]) is not None]
        means[name] = float(np.mean(found)) if found and len(found) == len(graphs) else None
    per_graph = dict(graphs)
    if ceilings is not None and not is_tile:
        taus = {g: _or_none(ceilings.get(f"{collection.name}:{g}", math.nan)) for g in graphs}
        known = [tau for tau in taus.values() if tau is not None]
        means["noise_ceiling"] = float(np.median(known)) if known else None
        per_graph = {g: graphs[g] | {"noise_ceiling": taus[g]} for g in graphs}
    return CollectionReport(
        metric=metric,
        value=float(np.mean(values)) if values else None,
        ci95=interval_of(family_means(np.array(values), each)) if len(each) > 1 else None,
        n_graphs=len(values),
        per_graph=per_graph,
        **means,
    )


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def remarks_on(report: RunReport) -> list[str]:
    """Return at most three warnings about the scores of a report.

    Args:
        report: Report of a run or of `score`.

    Returns:
        A line about graphs that were judged on some of their configs, one about blends that score
        lower than a member or the baseline, and one about intervals over few graphs.
    """
    sampled, beaten, few = list[str](), list[str](), list[str]()
    for name, part in report.collections.items():
        if part.value is None:
            continue
        if part.judged_on:
            sampled.append(f"{name} ({part.judged_on})")
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
        if part.ci95 is not None and part.n_graphs < FEW_GRAPHS:
            few.append(f"{name} ({part.n_graphs})")
    warnings = {
        "judged on some configs of a graph only": sampled,
        "lower than one member or the baseline alone": beaten,
        "interval too narrow because of few graphs": few,
    }
    return [f"{text}: {', '.join(names)}" for text, names in warnings.items() if names]
