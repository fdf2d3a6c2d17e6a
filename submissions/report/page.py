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

# More bars than this tell a reader nothing; the worst graphs are the ones to look at.
TEMPLATE = Path(__file__).with_name("report.html.j2")
MAX_BARS = 40
METRIC_NAMES = {"kendall_tau": "Kendall tau", "tile_score": "tile score"}
UNKNOWN = "–"


def write_report_page(
    report: Mapping[str, Any], path: Path, ranks: pl.DataFrame | None = None
) -> None:
    """Write the page of a report, whole or not at all; the same report gives the same bytes.

    Args:
        report: what report.json holds: `score`, `collections` and `left_out` as
            `submissions.score.score_submission` returns them. All else may be missing: `models`
            (by collection `members`, `importances`, `fallback_from`,
            `reason`, `blend`), `seeds`, `environment` (by
            name), `revision`, and `missing_parts` ("collection/split" as
            `data.tree.missing_parts` names them), `bad_files` (a line for each), `recipe`, `data`,
            `learning_curves`, `seconds` and `peak_mib` (by stage), `missing_stages` (a line for
            each, of a run that has not ended).
        path: the HTML file.
        ranks: as of `submissions.report.curves.read_ranks`.

    Raises:
        PipelineError: the file cannot be written.
    """
    collections: Mapping[str, Any] = report.get("collections", {})
    page = render_page(
        TEMPLATE,
        score=_number(report.get("score")),
        n_scored=sum(part["value"] is not None for part in collections.values()),
        remarks=remarks_on(report),
        collections=[_collection_view(name, part, ranks) for name, part in collections.items()],
        slowdowns=slowdown_pictures(collections),
        learning=learning_pictures(report.get("learning_curves", [])),
        has_ranks=ranks is not None,
        costs=_cost_view(report.get("seconds", {}), report.get("peak_mib", {})),
        total_seconds=f"{sum(report.get('seconds', {}).values()):.1f}",
        missing_stages=report.get("missing_stages", []),
        models=[_model_view(name, model) for name, model in report.get("models", {}).items()],
        left_out=report.get("left_out", []),
        reasons=Counter(entry["reason"] for entry in report.get("left_out", [])).most_common(),
        missing_parts=report.get("missing_parts", []),
        bad_files=report.get("bad_files", []),
        recipe=report.get("recipe"),
        data=report.get("data"),
        seeds=report.get("seeds", []),
        environment=report.get("environment", {}),
        revision=report.get("revision"),
    )
    write_text(path, page)


def _cost_view(
    seconds: Mapping[str, float], peak_mib: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    """Return what each stage took, with bars in percent of the longest."""
    longest = max(seconds.values(), default=0.0) or 1.0
    return [
        {
            "stage": stage,
            "seconds": f"{value:.1f}",
            "peak": UNKNOWN if peak_mib.get(stage) is None else f"{peak_mib[stage]:.0f}",
            "width": round(100 * value / longest, 2),
        }
        for stage, value in seconds.items()
    ]


def _collection_view(
    name: str, part: Mapping[str, Any], ranks: pl.DataFrame | None
) -> dict[str, Any]:
    """Return what the template shows of one collection: text, and bar places in percent."""
    metric = part["metric"]
    graphs = sorted(
        ((graph, scores[metric]) for graph, scores in part["per_graph"].items()),
        key=lambda entry: (entry[1], entry[0]),
    )
    # Both metrics end at 1; tau begins at -1, the tile score may fall below any bound.
    floor = min([0.0, *(value for _, value in graphs)])
    interval = part["ci95"]
    return {
        "name": name,
        "metric": METRIC_NAMES.get(metric, metric),
        "value": _number(part["value"]),
        "interval": "" if interval is None else f"{_number(interval[0])} to {_number(interval[1])}",
        "n_graphs": part["n_graphs"],
        "floor": None if part.get("floor") is None else _number(part["floor"]),
        "ceiling": None if part.get("noise_ceiling") is None else _number(part["noise_ceiling"]),
        "seed_sd": None if part.get("seed_sd") is None else _number(part["seed_sd"]),
        "seeds": [(seed, _number(value)) for seed, value in part.get("seed_values", {}).items()],
        "scatters": rank_pictures(name, part, ranks),
        "errors": [
            (f"top-{k} error", f"{part[key]:.1%}")
            for k in (1, 5, 10)
            if part.get(key := f"top{k}_error") is not None
        ],
        "mark": None if part["value"] is None else _mark(part["value"], interval),
        "bars": [_bar(graph, value, floor) for graph, value in graphs[:MAX_BARS]],
        "zero": _percent(0.0, floor),
    }


def _mark(value: float, interval: list[float] | None) -> dict[str, float]:
    """Place a mean and its interval on an axis from 0 (or the lowest end) to 1, in percent."""
    low, high = interval or (value, value)
    floor = min(0.0, low)
    places = {"low": low, "high": high, "value": value, "zero": 0.0}
    return {name: _percent(place, floor) for name, place in places.items()}


def _bar(graph: str, value: float, floor: float) -> dict[str, Any]:
    """Place one graph's bar between zero and its value, in percent of the axis."""
    zero, end = _percent(0.0, floor), _percent(value, floor)
    return {
        "graph": graph,
        "value": _number(value),
        "start": min(zero, end),
        "width": round(abs(end - zero), 2),
        "is_negative": value < 0,
    }


def _percent(value: float, floor: float) -> float:
    """Return where `value` lies between `floor` and 1, as a percentage."""
    return round(100 * (value - floor) / (1 - floor), 2)


def _model_view(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Describe who ranks a collection; each member with what it is worth alone, if known."""
    values = model.get("member_values", {})
    return {
        "name": name,
        "members": [
            f"{member} ({_number(values[member])} alone)"
            if values.get(member) is not None
            else str(member)
            for member in model.get("members", [])
        ],
        "method": model.get("method"),
        "is_diverse": "pick_diversity" in model,
        "weights": [
            {"member": member, "share": f"{share:.1%}", "width": round(100 * share, 2)}
            for member, share in model.get("weights", {}).items()
        ],
        "importances": [
            (ranker, [_importance(entry) for entry in entries])
            for ranker, entries in model.get("importances", {}).items()
        ],
        "blend": _blend_view(model.get("blend")),
        "fallback_from": model.get("fallback_from"),
        "reason": model.get("reason"),
    }


def _blend_view(choice: Mapping[str, Any] | None) -> str | None:
    """Say what blend was chosen and what it is worth on graphs that had no part in that."""
    if choice is None:
        return None
    if choice.get("nested_value") is None:
        return f"Blend: the recipe's, since there are {choice['reason']}."
    if choice["chosen"] == "recipe":
        return (
            "Blend: the recipe's, since nothing beat it by more than noise on the valid split"
            f"{_gain(choice)}."
        )
    low, high = choice["nested_ci95"]
    return (
        f"Blend: {choice['chosen']}, chosen on the valid split, so the value above is too good. "
        f"On graphs that had no part in the choice (nested): {_number(choice['nested_value'])}, "
        f"{_number(low)} to {_number(high)}."
    )


def _gain(choice: Mapping[str, Any]) -> str:
    """Say how much better the best of the others was, on graphs that had no part in finding it."""
    if choice.get("recipe_difference") is None:
        return ""
    low, high = choice["recipe_difference_ci99"]
    return (
        f" (gain of the best other, nested: {_number(choice['recipe_difference'])}, "
        f"99 % interval {_number(low)} to {_number(high)})"
    )


def _importance(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry["statistic"], f"{entry['gain']:.1%}", f"{entry['splits']:.1%}"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.4f}".replace("-", "−")


def render_page(template: Path, **values: object) -> str:
    """Return the page that the template file makes of the values."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)
