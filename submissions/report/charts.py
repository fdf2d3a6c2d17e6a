"""What the pages' charts show, and the script that draws them: `figures.js.j2` says how.

Of the package plotly nothing but its plotly.min.js is used. m members of a blend.
"""

import base64
import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl

from submissions.report.curves import CURVE_PICKS

POINT = ("config", "runtime_ns", "members")
Pairs = Mapping[str, Mapping[str, tuple[float, float]]]  # both scores by collection and graph


@dataclass(frozen=True)
class Chart:
    """One chart of a page.

    Attributes:
        kind: a name of FIGURES in figures.js.j2, which takes `data`.
        told: what it shows in words; stands there where nothing can be drawn.
    """

    kind: str
    title: str
    told: str
    data: Any


@cache
def library() -> str:
    """Return the script that holds plotly.min.js, packed; "" where plotly is not installed."""
    found = find_spec("plotly")
    if found is None or found.origin is None:
        return ""
    source = Path(found.origin).with_name("package_data") / "plotly.min.js"
    packed = base64.b64encode(gzip.compress(source.read_bytes(), mtime=0)).decode()
    return f'const PLOTLY = "{packed}";\n'


def slowdown_charts(collections: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """Chart the slowdown over the number of picks, of all collections that were judged: 0 or 1."""
    curves = {
        n: part["slowdown_curve"] for n, part in collections.items() if part.get("slowdown_curve")
    }
    told = "; ".join(
        f"{name}: best of {k} {100 * (curve['model'][CURVE_PICKS.index(k)] - 1):.1f} % slower"
        for name, curve in curves.items()
        for k in (1, 5, 10, 100)
    )
    return [Chart("slowdown", "Best of the first K picks", told, curves)] if curves else []


def learning_charts(curves: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Chart the learning curves, those of one collection and model together."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for curve in curves:
        title = f"{curve['group']}: {curve['member'].rsplit('-seed', 1)[0]}"
        groups.setdefault(title, []).append(curve)
    charts = []
    for title, own in groups.items():
        last = ", ".join(f"{curve['member']} {curve['loss'][-1]:.3f}" for curve in own)
        charts.append(Chart("learning", title, f"loss over steps; at the end: {last}", own))
    return charts


def ranks_chart(
    title: str, graphs: Mapping[str, pl.DataFrame], members: Sequence[str] = ()
) -> Chart:
    """Chart runtime against predicted rank of graphs, one at a time.

    Args:
        graphs: by name, points as `rank_points` makes them.
        members: names of the m members; none leaves out their scores.
    """
    shown = {
        name: {
            "rank": (points["rank"] + 1).to_list(),
            "slowdown": [round(value, 5) for value in points["slowdown"]],
            "configs": [
                [config, ns, *(float(f"{score:.5g}") for score in scores[: len(members)])]
                for config, ns, scores in points.select(*POINT).iter_rows()
            ],
        }
        for name, points in graphs.items()
    }
    told = f"runtime against predicted rank, one point per config, of {', '.join(graphs)}"
    return Chart("ranks", title, told, {"graphs": shown, "members": list(members)})


def comparison_charts(compared: Mapping[str, Any], pairs: Pairs) -> list[Chart]:
    """Chart the differences of two runs with their intervals, and both scores of each graph.

    Args:
        compared: what `compare_reports` returns.
    """
    means = {**compared["collections"], "mean": compared["mean"]}
    said = "; ".join(f"{name} {entry['difference']:+.4f}" for name, entry in means.items())
    told = "scores of each graph in both; above the line the second is better"
    below = any(score < 0 for own in pairs.values() for scores in own.values() for score in scores)
    more = "; a double click shows those below 0" if below else ""
    differences = {"pairs": pairs, "means": means}
    return [
        Chart("differences", "Differences and intervals", said, differences),
        Chart("pairs", f"Each graph in both{more}", told, {"pairs": pairs}),
    ]
