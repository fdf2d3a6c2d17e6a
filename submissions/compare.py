"""Compare two reports graph by graph: how much better one run ranks, and how sure that is.

Both runs are judged on the same graphs, so what a graph makes hard for either falls out of the
difference. Graphs of one family (batch sizes of one architecture) vary together and are drawn
together: the interval is a bootstrap over families.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import PipelineError
from data.tree import Collection, GraphFile, collection_named
from models.folds import family_of
from submissions.score import BOOTSTRAP_RESAMPLES, BOOTSTRAP_SEED, CONFIDENCE

Report = Mapping[str, Any]


def compare_reports(first: Report, second: Report) -> dict[str, Any]:
    """Compare the graphs that two reports have judged by the same metric.

    Args:
        first, second: what report.json holds.

    Returns:
        collections: for each with graphs in common, by name: `metric`, `n_graphs`, `n_families`,
            `only_in_one` (graphs that one of them alone has judged), `first` and `second` (means
            over the graphs in common), `difference` (second less first), `ci95` (None for fewer
            than two families) and `probability` that second is the better one.
        mean: the same four of the mean over these collections, or None if there are none.

    Raises:
        PipelineError: no collection has a graph that both have judged.
    """
    collections, draws = {}, []
    for name in first["collections"]:
        parts = [report["collections"].get(name) for report in (first, second)]
        if not all(parts) or parts[0]["metric"] != parts[1]["metric"]:
            continue
        values = [_values(part) for part in parts]
        common = sorted(values[0].keys() & values[1].keys())
        if not common:
            continue
        before, after = (np.array([side[graph] for graph in common]) for side in values)
        families = _families(collection_named(name), common)
        means = bootstrap_means(after - before, families)
        draws.append(means)
        collections[name] = {
            "metric": parts[0]["metric"],
            "n_graphs": len(common),
            "n_families": len(set(families)),
            "only_in_one": len(values[0].keys() ^ values[1].keys()),
            **_summary(float(before.mean()), float(after.mean()), means),
        }
    if not collections:
        raise PipelineError("compare: the runs have judged no graph in common; nothing to compare")
    sides = [
        float(np.mean([entry[side] for entry in collections.values()]))
        for side in ("first", "second")
    ]
    known = [means for means in draws if means is not None]
    joint = np.mean(known, axis=0) if len(known) == len(draws) else None
    return {"collections": collections, "mean": _summary(sides[0], sides[1], joint)}


def bootstrap_means(
    differences: NDArray[np.float64], families: list[str]
) -> NDArray[np.float64] | None:
    """Draw families with replacement; return the mean over their graphs for each draw.

    Args:
        differences: (g,) one per graph.
        families: (g,) of each.

    Returns:
        (2000,), or None where there are fewer than two families.
    """
    members: dict[str, list[int]] = defaultdict(list)
    for number, family in enumerate(families):
        members[family].append(number)
    if len(members) < 2:
        return None
    sums = np.array([differences[own].sum() for own in members.values()])
    sizes = np.array([len(own) for own in members.values()])
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    drawn = rng.integers(0, len(sums), (BOOTSTRAP_RESAMPLES, len(sums)))
    means: NDArray[np.float64] = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    return means


def _summary(first: float, second: float, means: NDArray[np.float64] | None) -> dict[str, Any]:
    interval = probability = None
    if means is not None:
        tail = (1 - CONFIDENCE) / 2
        interval = [float(end) for end in np.quantile(means, [tail, 1 - tail])]
        probability = float((means > 0).mean() + (means == 0).mean() / 2)
    return {
        "first": first,
        "second": second,
        "difference": second - first,
        "ci95": interval,
        "probability": probability,
    }


def _values(part: Mapping[str, Any]) -> dict[str, float]:
    metric = part["metric"]
    return {
        graph: scores[metric]
        for graph, scores in part["per_graph"].items()
        if scores.get(metric) is not None
    }


def _families(collection: Collection, graphs: list[str]) -> list[str]:
    return [family_of(GraphFile(collection, "valid", graph, Path(graph))) for graph in graphs]
