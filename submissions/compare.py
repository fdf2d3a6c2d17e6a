"""Compare two reports graph by graph.

Two runs are judged on the same graphs, so what a graph makes hard for either falls out of the
difference. Graphs of one family (batch sizes of one architecture) vary together and are drawn
together: interval and probability are of one bootstrap over families, stretched by Student's t
where these are few. The mean over collections has the means of their draws.
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

# With fewer families the probability says nothing.
MIN_FAMILIES = 4


def compare_reports(first: RunReport, second: RunReport) -> dict[str, Any]:
    """Compare the graphs that two reports have judged by the same metric.

    Args:
        first: Report of a run, or of `score --json`.
        second: The report to compare with it.

    Returns:
        collections: for each with graphs in common, by name: `metric`, `n_graphs`, `n_families`,
            `only_in_one` (graphs that one of them alone has judged), `first` and `second` (means
            over the graphs in common), `difference` (second less first), `ci95` (None for fewer
            than two families) and `probability` that second is the better one (None likewise).
        mean: the same four of the mean over these collections.

    Raises:
        PipelineError: No collection has a graph that both have judged.
    """
    collections, draws = {}, []
    for name, part in first.collections.items():
        other = second.collections.get(name)
        if other is None or other.metric != part.metric:
            continue
        before, after = part.values(), other.values()
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
            "compare: no graph in common; a run's folder has judged valid: for the test split "
            "compare what `score --private --json` printed of both"
        )
    means = np.array([[own["first"], own["second"]] for own in collections.values()])
    known = [own for own in draws if own is not None]
    joint = np.mean(known, axis=0) if len(known) == len(draws) else None
    return {"collections": collections, "mean": _summary(means.mean(axis=0), joint)}


def probability_texts(compared: Mapping[str, Any]) -> dict[str, str | None]:
    """Write the probabilities of `compare_reports`, by collection and for "mean".

    They have two digits and are cut to .01 to .99: a few families say no more. For fewer than four
    families the text is None.
    """
    known = {**compared["collections"], "mean": compared["mean"]}
    n_families = {name: own.get("n_families") for name, own in known.items()}
    n_families["mean"] = min(filter(None, n_families.values()))
    return {
        name: None
        if own["probability"] is None or n_families[name] < MIN_FAMILIES
        else f"{min(max(own['probability'], 0.01), 0.99):.2f}"
        for name, own in known.items()
    }


def comparison_notes(compared: Mapping[str, Any]) -> list[str]:
    """Return warnings about the figures of `compare_reports`."""
    collections = compared["collections"]
    notes = ["over families of graphs alone; other seeds of a recipe may move a score as far"]
    notes += [
        f"{name}: {entry['only_in_one']} graphs that only one of the two has judged"
        for name, entry in collections.items()
        if entry["only_in_one"]
    ]
    alone = [name for name, entry in collections.items() if entry["ci95"] is None]
    if alone:
        notes.append(f"no interval, nor one of the mean: one family alone in {', '.join(alone)}")
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
