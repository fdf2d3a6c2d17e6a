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
from common.metrics import family_means, interval_of, share_above_zero, stretched_means
from data.families import family_of
from data.tree import GraphFile, collection_named
from submissions.run_report import RunReport

FEWEST_FAMILIES = 4  # of which a probability is told


def compare_reports(first: RunReport, second: RunReport) -> dict[str, Any]:
    """Compare the graphs that two reports have judged by the same metric.

    Returns:
        collections: for each with graphs in common, by name: `metric`, `n_graphs`, `n_families`,
            `only_in_one` (graphs that one of them alone has judged), `first` and `second` (means
            over the graphs in common), `difference` (second less first), `ci95` (None for fewer
            than two families) and `probability` that second is the better one (None likewise).
        mean: the same four of the mean over these collections, or None if there are none.

    Raises:
        PipelineError: no collection has a graph that both have judged.
    """
    collections, draws = {}, []
    for name, pairs in paired_scores(first, second).items():
        parts = [report.collections[name] for report in (first, second)]
        before, after = np.array(list(pairs.values())).T
        programs = [parts[0].programs.get(graph, graph) for graph in pairs]
        place = collection_named(name), "valid"
        families = [family_of(GraphFile(*place, program, Path(program))) for program in programs]
        n_families = len(set(families))
        means = family_means(after - before, families) if n_families > 1 else None
        gain = float((after - before).mean())
        draws.append(None if means is None else stretched_means(means, gain, n_families))
        collections[name] = {
            "metric": parts[0].metric,
            "n_graphs": len(pairs),
            "n_families": n_families,
            "only_in_one": len(parts[0].values().keys() ^ parts[1].values().keys()),
            **_summary(float(before.mean()), float(after.mean()), draws[-1]),
        }
    if not collections:
        sides = f"the first judged {_judged(first)}, the second {_judged(second)}"
        raise PipelineError(
            f"compare: no graph in common: {sides}; a run's folder has judged valid: for the test "
            "split compare what `score --private --json` printed of both"
        )
    entries = collections.values()
    before, after = (float(np.mean([e[side] for e in entries])) for side in ("first", "second"))
    known = [own for own in draws if own is not None]
    joint = np.mean(known, axis=0) if len(known) == len(draws) else None
    return {"collections": collections, "mean": _summary(before, after, joint)}


def told_probabilities(compared: Mapping[str, Any]) -> dict[str, str | None]:
    """Write what `compare_reports` says of the second's being better, by collection and for "mean".

    In two digits, cut to .01 to .99: a few families tell no more, and fewer than four tell nothing
    (None).
    """
    collections = compared["collections"]
    n_families = {name: entry["n_families"] for name, entry in collections.items()}
    n_families["mean"] = min(n_families.values())
    known = {**collections, "mean": compared["mean"]}
    return {
        name: None
        if entry["probability"] is None or n_families[name] < FEWEST_FAMILIES
        else f"{min(max(entry['probability'], 0.01), 0.99):.2f}"
        for name, entry in known.items()
    }


def comparison_notes(compared: Mapping[str, Any]) -> list[str]:
    """Say in sentences what the figures of `compare_reports` leave out."""
    collections = compared["collections"]
    notes = ["over families of graphs alone; other seeds of a recipe may move a score as far"]
    notes += [
        f"{name}: {entry['only_in_one']} graphs that only one of the two has judged"
        for name, entry in collections.items()
        if entry["only_in_one"]
    ]
    alone = [name for name, entry in collections.items() if entry["ci95"] is None]
    if alone:
        notes.append(
            f"no interval, nor one of the mean: graphs of one family alone in {', '.join(alone)}"
        )
    return notes


def paired_scores(first: RunReport, second: RunReport) -> dict[str, dict[str, tuple[float, float]]]:
    """Return both scores of each graph that two reports have judged by the same metric.

    By collection, then by graph in their order by name; a collection without any is left out.
    """
    pairs = {}
    for name, part in first.collections.items():
        other = second.collections.get(name)
        if other is None or part.metric != other.metric:
            continue
        before, after = part.values(), other.values()
        common = sorted(before.keys() & after.keys())
        if common:
            pairs[name] = {graph: (before[graph], after[graph]) for graph in common}
    return pairs


def _judged(report: RunReport) -> str:
    parts = report.collections.items()
    graphs = [f"{name}:{graph}" for name, part in parts for graph in part.values()]
    return f"{len(graphs)} ({graphs[0]}, …)" if graphs else "none"


def _summary(first: float, second: float, draws: NDArray[np.float64] | None) -> dict[str, Any]:
    interval = probability = None
    if draws is not None:
        interval, probability = list(interval_of(draws)), share_above_zero(draws)
    return {
        "first": first,
        "second": second,
        "difference": second - first,
        "ci95": interval,
        "probability": probability,
    }
