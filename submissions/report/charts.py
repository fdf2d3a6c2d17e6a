"""Compute and draw the charts of a report: slowdown curves, learning curves and ranks.

The overview is a PNG by matplotlib. m members of a blend.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.files import atomic_path
from common.pages import Chart, bars
from data.families import family_of
from data.labels import Labels
from data.tree import GraphFile, collection_named
from submissions.run_report import CollectionReport, LearningCurve, RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_PICKS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100)
POINTS_PER_GRAPH = 300
# Families of a chart, those with the lowest scores.
MAX_FAMILIES = 15
# The first configs of a ranking are always shown.
FIRST_POINTS = 10
RANKS_SCHEMA: dict[str, Any] = {
    "collection": pl.String,
    "graph": pl.String,
    "rank": pl.UInt32,
    "slowdown": pl.Float32,
    "config": pl.UInt32,
    "runtime_ns": pl.Int64,
    "members": pl.List(pl.Float32),
}
POINT = ("config", "runtime_ns", "members")

FAINT, OURS, BASELINE, CEILING = "#5b6672", "#1f6feb", "#c4432b", "#2c974b"
SIZE_INCHES, DPI = (11.0, 3.0), 110
# Place of the axes. The automatic layout of matplotlib takes five times as long as drawing.
PLACE = (0.17, 0.27, 0.8, 0.52)
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.color": "#e3e7eb",
    "grid.linewidth": 0.6,
}


def slowdown_curve(
    rankings: Sequence[NDArray[np.int64]], runtimes: Sequence[NDArray[Any]]
) -> list[float]:
    """Return the mean over graphs of slowdown@K for each K of CURVE_PICKS.

    Args:
        rankings: Config indices of each graph, (c,) int64, predicted fastest first.
        runtimes: Runtimes of each graph, (c,).
    """
    curves = []
    for ranking, runtime in zip(rankings, runtimes, strict=True):
        at = np.minimum(CURVE_PICKS, len(ranking)) - 1
        curves.append(np.minimum.accumulate(runtime[ranking])[at] / runtime.min())
    means: list[float] = np.mean(curves, axis=0).round(6).tolist()
    return means


def rank_points(
    collection: str,
    graph: str,
    ranking: NDArray[np.int64],
    labels: Labels,
    tables: Sequence[pl.DataFrame | None] = (),
) -> pl.DataFrame:
    """Return RANKS_SCHEMA of about 300 configs: evenly by rank, the first ten, and the fastest.

    Args:
        ranking: Positions of configs, (c,) int64, predicted fastest first.
        labels: Runtimes by position.
        tables: Tables of the blend and of its members, with `config` (the row in the graph's file)
            and `score` by position. Without them, positions are rows. None for a member that does
            not rank the graph.
    """
    runtime = labels.runtime
    even_ranks = np.linspace(0, len(ranking) - 1, POINTS_PER_GRAPH).round()
    first = [*range(min(FIRST_POINTS, len(ranking))), runtime[ranking].argmin()]
    ranks = np.union1d(even_ranks, first).astype(np.uint32)
    places = ranking[ranks]
    blend = tables[0] if tables else None
    configs = places.astype(np.uint32) if blend is None else blend["config"].to_numpy()[places]
    scores = [
        [None] * len(ranks) if table is None else table["score"].to_numpy()[places].tolist()
        for table in tables[1:]
    ]
    return pl.DataFrame(
        {
            "collection": [collection] * len(ranks),
            "graph": [graph] * len(ranks),
            "rank": ranks,
            "slowdown": (runtime[places] / runtime.min()).astype(np.float32),
            "config": configs,
            "runtime_ns": labels.runtime_ns[places],
            "members": [[of_member[i] for of_member in scores] for i in range(len(ranks))],
        },
        schema=RANKS_SCHEMA,
    )


def slowdown_charts(collections: Mapping[str, CollectionReport]) -> list[Chart]:
    """Return one chart of the slowdown over the number of configs, or none without curves."""
    curves = {name: curve for name, part in collections.items() if (curve := part.slowdown_curve)}
    description = "; ".join(
        f"{name}: best of {k} {100 * (slowdown - 1):.1f} % slower"
        for name, curve in curves.items()
        for k in (1, 5, 10, 100)
        if (slowdown := curve.at(k)) is not None
    )
    data = {name: curve.model_dump() for name, curve in curves.items()}
    return [Chart("slowdown", "Best of the first K configs", description, data)] if curves else []


def learning_charts(curves: Sequence[LearningCurve]) -> list[Chart]:
    """Return one chart of learning curves per collection and model."""
    groups: dict[str, list[LearningCurve]] = {}
    for curve in curves:
        title = f"{curve.group}: {curve.member.rsplit('-seed', 1)[0]}"
        groups.setdefault(title, []).append(curve)
    ends = {t: ", ".join(f"{c.member} {c.loss[-1]:.3f}" for c in groups[t]) for t in groups}
    prefix = "loss over steps, and the held-out metric; loss at the end: "
    return [
        Chart("learning", title, prefix + ends[title], [curve.model_dump() for curve in group])
        for title, group in groups.items()
    ]


def families_of(name: str, part: CollectionReport) -> dict[str, list[float]]:
    """Return the scores of a collection's graphs by family, the family of lowest mean first."""
    scores: dict[str, list[float]] = {}
    for graph, value in part.values().items():
        program = part.programs.get(graph, graph)
        file = GraphFile(collection_named(name), "valid", program, Path(program))
        scores.setdefault(family_of(file), []).append(value)
    return dict(sorted(scores.items(), key=lambda item: (np.mean(item[1]), item[0])))


def family_charts(collections: Mapping[str, CollectionReport]) -> list[Chart]:
    """Return a chart per collection of the mean score of each family, at most the 15 lowest."""
    charts = []
    for name, part in collections.items():
        families = families_of(name, part)
        lowest = {
            f"{family} ({len(scores)})": float(np.mean(scores))
            for family, scores in islice(families.items(), MAX_FAMILIES)
        }
        text = ", ".join(f"{family} {mean:.3f}" for family, mean in lowest.items())
        if len(families) > 1:
            title = f"{name}: {len(lowest)} of {len(families)} families"
            charts.append(Chart("bars", title, text, bars(lowest, part.metric)))
    return charts


def ranks_chart(graph: str, points: pl.DataFrame, members: Sequence[str]) -> Chart:
    """Return a chart of runtime against rank with `rank_points` and the scores of m members."""
    point_data = {
        "rank": (points["rank"] + 1).to_list(),
        "slowdown": [round(value, 5) for value in points["slowdown"]],
        "configs": [
            [config, ns, *(s if s is None else float(f"{s:.5g}") for s in scores[: len(members)])]
            for config, ns, scores in points.select(*POINT).iter_rows()
        ],
    }
    description = f"runtime against predicted rank, one point per config, of {graph}"
    title = "One point per config; green: the fastest"
    return Chart("ranks", title, description, {"points": point_data, "members": list(members)})


@contextmanager
def picture(path: Path, size_inches: tuple[float, float]) -> Iterator["Figure"]:
    """Yield an empty figure without a window, and write it as a PNG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=size_inches)
        FigureCanvasAgg(figure)
        yield figure
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def _draw_scores(axes: "Axes", parts: Mapping[str, CollectionReport]) -> None:
    for row, part in enumerate(parts.values()):
        value = part.value or 0.0
        ends, rows = part.ci95 or (value, value), (row, row)
        axes.plot(ends, rows, color=OURS, linewidth=5, alpha=0.35, solid_capstyle="butt")
        axes.plot(value, row, "o", color=OURS, markersize=7)
        for limit, colour in ((part.baseline, BASELINE), (part.noise_ceiling, CEILING)):
            if limit is not None:
                axes.plot(limit, row, "|", color=colour, markersize=14, markeredgewidth=2)
    labels = ("this run, 95 % interval", "baseline: no training", "noise ceiling")
    for colour, mark, label in zip((OURS, BASELINE, CEILING), "o||", labels, strict=True):
        axes.plot([], [], mark, color=colour, label=label, markersize=8, markeredgewidth=2)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.set_ylim(len(parts) - 0.4, -0.6)
    # All overviews have the same scale.
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), 1.02)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False)
    axes.set_title("Score by collection (1 is perfect)", loc="left")


def write_overview(report: RunReport, path: Path) -> None:
    """Write the scores of a report as a picture."""
    parts = {name: part for name, part in report.collections.items() if part.value is not None}
    score = f"{report.score:.4f}" if report.score else None
    facts = {"recipe": report.recipe, "score": score, "revision": report.revision}
    heading = ", ".join(f"{key} {value}" for key, value in facts.items() if value)
    with picture(path, SIZE_INCHES) as figure:
        figure.suptitle(heading, fontsize=11, fontweight="bold", x=0.01, ha="left")
        axes = figure.add_axes(PLACE)
        if parts:
            _draw_scores(axes, parts)
        else:
            axes.set_axis_off()
            axes.text(0, 0.5, "No collection has measured runtimes.", color=FAINT)
