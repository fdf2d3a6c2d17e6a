"""The report as one HTML page: no scripts, no network, bars as inline SVG, readable on a phone."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.atomic import write_text
from submissions.report.pictures import learning_pictures, rank_pictures, slowdown_pictures
from submissions.score import remarks_on

TEMPLATE = Path(__file__).with_name("report.html.j2")
MAX_BARS = 40  # the worst graphs are the ones to look at
METRIC_NAMES = {"kendall_tau": "Kendall tau", "tile_score": "tile score"}
LISTS = ("missing_stages", "left_out", "missing_parts", "bad_files", "seeds", "learning_curves")
TABLES = ("collections", "models", "environment", "seconds", "peak_mib")


def write_report_page(
    report: Mapping[str, Any], path: Path, ranks: pl.DataFrame | None = None
) -> None:
    """Write the page of a report, whole or not at all; the same report gives the same bytes.

    Args:
        report: what report.json holds: `score`, `collections` and `left_out` as
            `submissions.score.score_submission` returns them. All else may be missing: `models`
            (by collection `members`, `importances`, `fallback_from`, `reason`, `blend`), `seeds`,
            `environment` (by name), `revision`, `missing_parts` ("collection/split"), `bad_files`
            (a line for each), `recipe`, `data`, `learning_curves`, `seconds` and `peak_mib` (by
            stage), `missing_stages` (a line for each, of a run that has not ended).

    Raises:
        PipelineError: the file cannot be written.
    """
    empty = dict.fromkeys(("score", "recipe", "data", "revision"))
    known: dict[str, Any] = {name: [] for name in LISTS} | {name: {} for name in TABLES} | empty
    known |= report
    collections = known["collections"]
    views = [_collection_view(name, part, ranks) for name, part in collections.items()]
    known |= {
        "collections": views,
        "n_scored": sum(part["value"] is not None for part in views),
        "remarks": remarks_on(report),
        "slowdowns": slowdown_pictures(collections),
        "learning": learning_pictures(known["learning_curves"]),
        "has_ranks": ranks is not None,
        "reasons": Counter(entry["reason"] for entry in known["left_out"]).most_common(),
    }
    write_text(path, render_page(TEMPLATE, **known))


def _collection_view(
    name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None
) -> dict[str, Any]:
    metric, value = part["metric"], part["value"]
    graphs = sorted(
        ((graph, scores[metric]) for graph, scores in part["per_graph"].items()),
        key=lambda entry: (entry[1], entry[0]),
    )
    # Both metrics end at 1; tau begins at -1, the tile score may fall below any bound.
    floor = min([0.0, *(score for _, score in graphs)])
    interval = part["ci95"]
    low, high = interval or (value, value)
    optional = dict.fromkeys(("floor", "noise_ceiling", "seed_sd"))
    return {
        **optional,
        **part,
        "name": name,
        "metric": METRIC_NAMES.get(metric, metric),
        "interval": "" if interval is None else f"{_number(low)} to {_number(high)}",
        "seeds": part.get("seed_values", {}),
        "scatters": rank_pictures(name, part, ranks),
        "errors": {
            k: part[f"top{k}_error"] for k in (1, 5, 10) if part.get(f"top{k}_error") is not None
        },
        "mark": None if value is None else _mark(low, value, high),
        "bars": [_bar(graph, score, floor) for graph, score in graphs[:MAX_BARS]],
        "zero": _percent(0.0, floor),
    }


def _mark(low: float, value: float, high: float) -> dict[str, float]:
    floor = min(0.0, low)
    places = {"low": low, "high": high, "value": value, "zero": 0.0}
    return {name: _percent(place, floor) for name, place in places.items()}


def _bar(graph: str, value: float, floor: float) -> dict[str, Any]:
    zero, end = _percent(0.0, floor), _percent(value, floor)
    width = round(abs(end - zero), 2)
    return {"graph": graph, "value": value, "start": min(zero, end), "width": width}


def _percent(value: float, floor: float) -> float:
    return round(100 * (value - floor) / (1 - floor), 2)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}".replace("-", "−")


def render_page(template: Path, **values: object) -> str:
    """Return the page that the template file makes of the values; filters: number, percent."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "percent": "{:.1%}".format}
    return environment.get_template(template.name).render(**values)
