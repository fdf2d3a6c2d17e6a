"""Which pictures a report has: of each collection, and of its trainings; and what is missing."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import polars as pl

from submissions.report.curves import CURVE_PICKS
from submissions.report.plots import draw_learning, draw_ranks, draw_slowdown
from submissions.report.svg import Picture, picture

# Of a collection with more graphs, these many are drawn: the worst, the best, and evenly between.
MAX_SCATTERS = 12


def slowdown_pictures(collections: Mapping[str, Mapping[str, Any]]) -> list[Picture]:
    """Draw the slowdown over the number of picks, of each collection that was judged."""
    pictures = []
    for name, part in collections.items():
        curve = part.get("slowdown_curve")
        if curve:
            told = "; ".join(
                f"best of {k}: {100 * (curve['model'][CURVE_PICKS.index(k)] - 1):.1f} % slower"
                for k in (1, 5, 10, 100)
            )
            pictures.append(picture(name, told, partial(draw_slowdown, curve=curve)))
    return pictures


def rank_pictures(name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None) -> list[Picture]:
    """Draw predicted rank against runtime for graphs of one collection, the worst first.

    Args:
        name: the collection.
        part: its entry in the report.
        ranks: columns of submissions.report.curves.RANKS_SCHEMA; None if there is no such file.
    """
    if ranks is None:
        return []
    own = ranks.filter(pl.col("collection") == name)
    pictures = []
    for value, graph in _spread(_by_score(part, own)):
        points = own.filter(pl.col("graph") == graph)
        told = f"predicted rank against runtime of {points.height} configs; {value:.3f}"
        pictures.append(picture(f"{graph}: {value:.3f}", told, partial(draw_ranks, points=points)))
    return pictures


def middle_graph(
    name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None
) -> tuple[str, pl.DataFrame] | None:
    """Return the graph in the middle by score, and its points; None where there are none."""
    if ranks is None:
        return None
    own = ranks.filter(pl.col("collection") == name)
    graphs = _by_score(part, own)
    if not graphs:
        return None
    value, graph = graphs[len(graphs) // 2]
    return f"{graph}: {value:.3f}", own.filter(pl.col("graph") == graph)


def _by_score(part: Mapping[str, Any], points: pl.DataFrame) -> list[tuple[float, str]]:
    """List the graphs that have points with their scores, the worst first."""
    known, metric = set(points["graph"].unique()), part["metric"]
    return sorted(
        (found[metric], name) for name, found in part["per_graph"].items() if name in known
    )


def _spread(graphs: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    chosen = np.unique(np.linspace(0, len(graphs) - 1, min(len(graphs), MAX_SCATTERS)).round())
    return [graphs[int(i)] for i in chosen] if graphs else []


def learning_pictures(curves: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Draw the learning curves of one collection's models, one picture per collection and model."""
    pictures = []
    for (group, model), own in groupby(curves, key=_group_and_model):
        listed = list(own)
        last = ", ".join(f"{curve['member']} {curve['loss'][-1]:.3f}" for curve in listed)
        told = f"loss over steps; at the end: {last}"
        title = f"{group}: {model}" if group else model
        pictures.append(picture(title, told, partial(draw_learning, curves=listed)))
    return pictures


def _group_and_model(curve: Mapping[str, Any]) -> tuple[str, str]:
    return curve["group"], curve["member"].rsplit("-seed", 1)[0]
