"""The report on a search: one HTML page and one picture, from what its folder holds."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from common.atomic import write_text
from pipeline.tuning.objectives import pareto_front
from pipeline.tuning.report.plots import (
    draw_front,
    draw_history,
    draw_importances,
    draw_parallel,
    draw_slice,
    short,
    told,
)
from pipeline.tuning.report.sheet import COSTS, TOO_FEW, by_importance, write_sheet
from pipeline.tuning.report.study import Search, importances, read_search
from pipeline.tuning.result import TrialRecord
from submissions.report.page import render_page
from submissions.report.pictures import Picture, picture

PAGE, SHEET = "tune.html", "tune.png"
TEMPLATE = Path(__file__).with_name("tune.html.j2")
BEST_ROWS = 10


def write_tune_report(out: Path) -> tuple[Path, Path]:
    """Write OUT/tune.html and OUT/tune.png; a running search can be looked at, too.

    The same trials give the same bytes.

    Raises:
        PipelineError: `out` is no search's folder, or has no trial yet.
    """
    search = read_search(out)
    shares = importances(search.space, search.complete)
    view = {**_facts(search), "pictures": _pictures(search, shares), "has_shares": bool(shares)}
    page = render_page(TEMPLATE, **view, too_few=TOO_FEW)
    write_text(out / PAGE, page)
    write_sheet(search, shares, out / SHEET)
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
        "cost": "–" if trial.cost is None else f"{trial.cost:.3g}",
        "params": {short(key): told(value) for key, value in trial.params.items()},
    }


def _pictures(search: Search, shares: dict[str, float]) -> list[Picture]:
    """Draw the page's pictures: history, importances, parallel coordinates, a slice per key."""
    words = f"{len(search.complete)} of {len(search.trials)} trials have a value"
    pictures = [picture("History", words, partial(draw_history, search=search))]
    if shares:
        words = ", ".join(f"{short(key)} {share:.0%}" for key, share in shares.items())
        pictures.append(picture("Importances", words, partial(draw_importances, shares=shares)))
    complete, space = search.complete, search.space
    if not complete:
        return pictures
    timed = search.timed
    if timed:
        numbers = ", ".join(str(trial.number) for trial in pareto_front(timed))
        words = f"no trial is both better and faster than trials {numbers}"
        front = partial(draw_front, trials=timed, unit=COSTS[space.study.objectives])
        pictures.append(picture("Pareto front", words, front))
    words = "each trial is a line through its parameters, bright where its value is high"
    lines = partial(draw_parallel, space=space, trials=complete)
    pictures.append(picture("Parallel coordinates", words, lines))
    for key in by_importance(search, shares):
        draw = partial(draw_slice, key=key, parameter=space.parameters[key], trials=complete)
        pictures.append(picture(key, f"held-out value over {key}", draw))
    return pictures
