"""Compare two reports graph by graph.

Two runs are judged on the same graphs, so the difficulty of a graph cancels in the difference.
Interval and probability are from one bootstrap over families, because graphs of one family (batch
sizes of one architecture) vary together. Student's t widens the interval for few families. The
mean over collections uses the means of their draws.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.metrics import family_draws, interval_of, share_above_zero
from data.families import family_of
from data.tree import GraphFile, collection_named
from submissions.run_report import RunReport

# With fewer families the probability is meaningless.
MIN_FAMILIES = 4


def compare_reports(first: RunReport, second: RunReport) -> dict[str, Any]:
    """Compare two reports on the graphs that both have judged with the same metric.

    Returns:
        `collections` has an entry per collection with common graphs, and `mean` one for the mean
        over collections. `difference` is second minus first, and `probability` that of a better
        second report. It and `ci95` are None for fewer than two families.
    """
    collections, draws = {}, []
    for name, part in first.collections.items():
        second_part = second.collections.get(name)
        if second_part is None or second_part.metric != part.metric:
            continue
        before, after = part.values(), second_part.values()
        common = sorted(before.keys() & after.keys())
        if not common:
            continue
        place = collection_named(name), "valid"
        programs = [part.programs.get(graph, graph) for graph in common]
        families = [family_of(GraphFile(*place, program, Path(program))) for program in programs]
        pairs = np.array([(before[graph], after[graph]) for graph in common])
        gains, n_families = pairs[:, 1] - pairs[:, 0], len(set(families))
        draws.append(family_draws(gains, families) if n_families > 1 else None)
        collections[name] = {
            "metric": part.metric,
            "n_graphs": len(common),
            "n_families": n_families,
            "only_in_one": len(before.keys() ^ after.keys()),
            **_summary(pairs.mean(axis=0), draws[-1]),
        }
    if not collections:
        raise PipelineError(
            "compare: no graph in common; a run folder has scores of valid; for the test split "
            "compare the output of `score --private --json` of both runs"
        )
    means = np.array([[part["first"], part["second"]] for part in collections.values()])
    draw_sets = [values for values in draws if values is not None]
    joint = np.mean(draw_sets, axis=0) if len(draw_sets) == len(draws) else None
    return {"collections": collections, "mean": _summary(means.mean(axis=0), joint)}


def probability_texts(comparison: Mapping[str, Any]) -> dict[str, str | None]:
    """Format the probabilities of `compare_reports`, by collection and for "mean".

    They have two digits from .01 to .99, because a few families do not support more. They are None
    for fewer than four families.
    """
    parts = {**comparison["collections"], "mean": comparison["mean"]}
    n_families = {name: part["n_families"] for name, part in comparison["collections"].items()}
    n_families["mean"] = min(n_families.values())
    return {
        name: None
        if part["probability"] is None or n_families[name] < MIN_FAMILIES
        else f"{min(max(part['probability'], 0.01), 0.99):.2f}"
        for name, part in parts.items()
    }


def comparison_notes(comparison: Mapping[str, Any]) -> list[str]:
    """Return warnings about the scores of `compare_reports`."""
    collections = comparison["collections"]
    notes = ["intervals cover families of graphs; other seeds may move a score as far"]
    notes += [
        f"{name}: {entry['only_in_one']} graphs are only in one of the reports"
        for name, entry in collections.items()
        if entry["only_in_one"]
    ]
    single = [name for name, entry in collections.items() if entry["ci95"] is None]
    if single:
        notes.append(f"no interval, also of the mean: only one family in {', '.join(single)}")
    return notes


def _summary(means: NDArray[np.float64], draws: NDArray[np.float64] | None) -> dict[str, Any]:
    first, second = means.tolist()
    return {
        "first": first,
        "second": second,
        "difference": second - first,
        "ci95": None if draws is None else list(interval_of(draws)),
        "probability": None if draws is None else share_above_zero(draws),
    }
