"""The report on a search: one HTML page and one picture, from what its folder holds."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from data.atomic import atomic_path, write_text
from models.objectives import pareto_front
from models.tune_result import TrialRecord
from submissions.pictures import STYLE, Picture, new_figure, picture
from submissions.tune_drawings import (
    draw_front,
    draw_history,
    draw_importances,
    draw_parallel,
    draw_slice,
    short,
)
from submissions.tune_study import Search, importances, read_search

TEMPLATES = Path(__file__).parent / "templates"
PAGE, SHEET = "tune.html", "tune.png"
SHEET_INCHES, DPI = (11.0, 6.4), 110
# Left, bottom, width, height on the sheet: history, importances, parallel coordinates.
PLACES = ((0.07, 0.58, 0.4, 0.36), (0.55, 0.58, 0.42, 0.36), (0.07, 0.06, 0.9, 0.4))
BEST_ROWS = 10
COSTS = {
    "score-and-training-time": "seconds of training, all folds",
    "score-and-inference-time": "seconds of inference per 1,000 configs",
}
NO_VALUES = "No trial has a value yet."
TOO_FEW = "Too few trials, or all alike: nothing can be said on importances."


def write_tune_report(out: Path) -> tuple[Path, Path]:
    """Write OUT/tune.html and OUT/tune.png; a running search can be looked at, too.

    The same trials give the same bytes.

    Raises:
        PipelineError: `out` is no search's folder, or has no trial yet.
    """
    search = read_search(out)
    shares = importances(search.space, search.complete)
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    view = {**_facts(search), "pictures": _pictures(search, shares), "has_shares": bool(shares)}
    page = environment.get_template("tune.html.j2").render(**view, too_few=TOO_FEW)
    write_text(out / PAGE, page)
    _write_sheet(search, shares, out / SHEET)
    return out / PAGE, out / SHEET


def _facts(search: Search) -> dict[str, Any]:
    """Return what the page says in words and tables."""
    ranked = sorted(search.complete, key=lambda trial: (-(trial.value or 0.0), trial.number))
    chosen = search.chosen
    baseline = [trial for trial in search.complete if trial.is_baseline]
    failed = [trial.reason for trial in search.trials if trial.state == "fail"]
    return {
        "study": search.space.study,
        "states": Counter(trial.state for trial in search.trials),
        "is_ended": search.is_ended,
        "chosen": _row(chosen) if chosen else None,
        "baseline": _row(baseline[0]) if baseline else None,
        "verdict": search.verdict["reason"] if search.verdict else None,
        "rows": [_row(trial) for trial in ranked[:BEST_ROWS]],
        "front": [
            trial.number for trial in pareto_front([t for t in ranked if t.cost is not None])
        ],
        "cost": COSTS.get(search.space.study.objectives, ""),
        "keys": [short(key) for key in search.space.parameters],
        "reasons": Counter(map(str, failed)).most_common(),
    }


def _row(trial: TrialRecord) -> dict[str, Any]:
    return {
        "number": trial.number,
        "called": f"{trial.number} (baseline)" if trial.is_baseline else str(trial.number),
        "value": f"{trial.value:.4f}",
        "seconds": "–" if trial.seconds is None else f"{trial.seconds:.0f}",
        "params": {short(key): _short_value(value) for key, value in trial.params.items()},
    }


def _short_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _pictures(search: Search, shares: dict[str, float]) -> list[Picture]:
    """Draw the page's pictures: history, importances, parallel coordinates, a slice per key."""
    told = f"{len(search.complete)} of {len(search.trials)} trials have a value"
    pictures = [picture("History", told, partial(draw_history, search=search))]
    if shares:
        told = ", ".join(f"{short(key)} {share:.0%}" for key, share in shares.items())
        pictures.append(picture("Importances", told, partial(draw_importances, shares=shares)))
    complete, space = search.complete, search.space
    if not complete:
        return pictures
    timed = search.timed
    if timed:
        numbers = ", ".join(str(trial.number) for trial in pareto_front(timed))
        told = f"no trial is both better and faster than trials {numbers}"
        front = partial(draw_front, trials=timed, unit=COSTS[space.study.objectives])
        pictures.append(picture("Pareto front", told, front))
    told = "each trial is a line through its parameters, bright where its value is high"
    lines = partial(draw_parallel, space=space, trials=complete)
    pictures.append(picture("Parallel coordinates", told, lines))
    for key in sorted(space.parameters, key=lambda key: -shares.get(key, 0.0)):
        if any(key in trial.params for trial in complete):
            draw = partial(draw_slice, key=key, parameter=space.parameters[key], trials=complete)
            pictures.append(picture(key, f"held-out value over {key}", draw))
    return pictures


def _write_sheet(search: Search, shares: dict[str, float], path: Path) -> None:
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(SHEET_INCHES)
        history, bars, lines = (figure.add_axes(place) for place in PLACES)
        study = search.space.study
        draw_history(history, search)
        history.set_title(f"{study.model} on {study.collection}", loc="left")
        draw_importances(bars, shares) if shares else _say(bars, TOO_FEW)
        if search.complete:
            draw_parallel(lines, search.space, search.complete)
        else:
            _say(lines, NO_VALUES)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


def _say(axes: Any, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", wrap=True)
