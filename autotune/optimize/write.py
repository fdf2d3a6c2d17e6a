"""The files that `optimize` writes: best.json, a page and, if something is faster, apply.py.

from DIR.apply import step  # the faster function; an edited module is a file next to apply.py
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from textwrap import shorten
from typing import Any

from autotune.optimize.candidate import MAX_LOSS, Candidate, Comparison, Ratio, setting_text
from autotune.optimize.optimize import OptimizeResult
from autotune.optimize.strategies import SEARCH
from autotune.spaces import TILES, TOLERANCE
from common.files import write_bytes, write_text
from common.pages import render_page
from submissions.report.charts import Chart, library

BEST, APPLY, MODULE, PAGE = "best.json", "apply.py", "module.hlo.pb", "optimize.html"
MAX_REASONS = 12  # why candidates failed
MAX_SHAPES = 80  # characters of the arguments' shapes in apply.py


def write_result(result: OptimizeResult, out: Path) -> dict[str, Any]:
    """Write all files, best.json last, and return its content.

    Args:
        result: Result of `optimize`.
        out: Folder of the files.

    Raises:
        PipelineError: A file cannot be written.
    """
    content, best = as_json(result), result.best if result.is_faster else None
    page = _page(result, content)
    module, script = (best.description.module, apply_text(result, best)) if best else (None, "")
    for name, data in ((MODULE, module), (APPLY, script.encode())):
        if data:
            write_bytes(out / name, data)
        else:
            (out / name).unlink(missing_ok=True)
    write_text(out / PAGE, page)
    write_text(out / BEST, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return content


def as_json(result: OptimizeResult) -> dict[str, Any]:
    """Return a result as JSON, in milliseconds and as ratios over the default.

    Args:
        result: Result of `optimize`.
    """
    best, measured, request = result.best, result.measured, result.request
    used, together = best if result.is_faster else None, best and best.together
    return {
        "program": request.program,
        "is_faster": result.is_faster,
        "default_ms": measured.default_ms,
        "best_ms": used and measured.default_ms * measured.ratio.value,
        "ratio": best and measured.ratio.value,
        "ci95": best and list(measured.ratio[1:]),
        "aa_ratio": measured.same.value,
        "aa_ci95": list(measured.same[1:]),
        "rounds": measured.n_rounds,
        "processes": measured.n_processes,
        "looks": measured.n_looks,
        "decisions": dict(used.description.decisions) if used else {},
        "default_decisions": dict(result.default_description.decisions),
        "source": best and best.source,
        "search": request.search,
        "candidates": {
            "drawn": result.n_drawn,
            "tried": len(result.tried),
            "by_source": dict(Counter(c.source for c in result.tried)),
            "failed": sum(bool(candidate.failure) for candidate in result.tried),
            "verified": sum(candidate.verified is not None for candidate in result.candidates),
            "unconfirmed": len(result.waiting),
        },
        "spaces": list(result.spaces),
        "seed": request.seed,
        "tolerance": TOLERANCE,
        "threads": 1,
        "on_all_cores": together
        and {
            "ratio": together.ratio.value,
            "ci95": list(together.ratio[1:]),
            "aa_ci95": list(together.same[1:]),
            "processes": together.n_processes,
            "looks": together.n_looks,
        },
        "environment": dict(result.facts),
    }


def apply_text(result: OptimizeResult, best: Candidate) -> str:
    """Return a Python file with the function and the best setting.

    Args:
        result: Result of `optimize`.
        best: Candidate to apply.
    """
    program, description, comparison = result.request.program, best.description, best.comparison
    module, _, name = program.partition(":")
    ratio = f"{comparison.ratio.value:.2f} of the default's time"
    machine = f"one thread on {result.facts.get('cpu')}"
    gain = f"{ratio} by {processes_text(comparison)}, {machine}{all_cores_text(best)}."
    return render_page(
        Path(__file__).with_name("apply.py.j2"),
        **{"program": program, "module": module, "name": name, "gain": gain},
        is_kernel=result.spaces == (TILES,),
        tile=description.decisions.get("tile"),
        is_edited=bool(description.module),
        module_file=MODULE,
        uncompared=uncompared_text(result),
        options=pformat(description.decisions.get("options", {})),
        digest=result.facts.get("function", ""),
        arguments=shorten(result.facts.get("arguments", "?"), MAX_SHAPES, placeholder=" …"),
    )


def _page(result: OptimizeResult, content: Mapping[str, Any]) -> str:
    default = "default", setting_text(result.default_description)
    rows = [("default again", result.measured.same, *default)]
    for n, own in enumerate(result.finalists, start=1):
        assert own.verified
        rows.append((f"finalist {n}", own.verified.ratio, *_words(own)))
    for n, own in enumerate(result.confirmed, start=1):
        rows.append((f"confirmed {n}", own.comparison.ratio, *_words(own)))
        if own.together:
            rows.append((f"on all cores {n}", own.together.ratio, *_words(own)))
            rows.append((f"default again, on all cores {n}", own.together.same, *default))
    ran = sorted((c for c in result.tried if not c.failure), key=lambda c: c.screened)
    by_source: dict[str, list[tuple[int, float]]] = {}
    for place, candidate in enumerate(ran):
        by_source.setdefault(candidate.source, []).append((place, candidate.screened))
    charts = [
        Chart(
            "candidates",
            "Candidates by time",
            f"{len(ran)} candidates ran; the fastest took {ran[0].screened:.2f} of the default's "
            f"time, the slowest {ran[-1].screened:.2f}, as screened: the fastest are partly lucky.",
            by_source,
        ),
        Chart(
            "verified",
            "Measured again",
            "In fresh processes, in rounds beside the default; the bars are 95 % intervals.",
            {name: [ratio.low, ratio.value, ratio.high] for name, ratio, *_ in rows},
        ),
    ]
    return render_page(
        Path(__file__).with_name("optimize.html.j2"),
        result=content,
        rows=[(name, ratio_text(ratio), *more) for name, ratio, *more in rows],
        charts=charts,
        tried=tried_text(result),
        sources=sources_text(result),
        together=all_cores_text(result.best) if result.best else "",
        verdict=verdict_text(result),
        uncompared=uncompared_text(result),
        halves=half_confirmed_text(result),
        library=library(),
        reasons=sorted({c.failure for c in result.tried if c.failure})[:MAX_REASONS],
    )


def _words(own: Candidate) -> tuple[str, str]:
    return own.source, setting_text(own.description)


def verdict_text(result: OptimizeResult) -> str:
    """Return why nothing is called faster, or that this is not known yet."""
    if n := len(result.waiting) or len([] if result.undecided else result.half_confirmed):
        were = "candidates were" if n > 1 else "candidate was"
        return f"{n} verified {were} not confirmed; the same command resumes"
    return f"nothing is surely faster than the default: {result.why_not}"


def uncompared_text(result: OptimizeResult) -> str:
    """Return what a kernel's tiles are not compared with; "" for other programs."""
    of_kernel = "tiles alone; jax.jit(kernel.whole), without a loop, may be faster: time it too"
    return of_kernel if result.spaces == (TILES,) else ""


def half_confirmed_text(result: OptimizeResult) -> list[str]:
    """Return a line for each candidate that the time ended in the middle of confirming."""
    resume = "is half confirmed; the same command resumes"
    return [f"{setting_text(own.description)} {resume}" for own in result.half_confirmed]


def all_cores_text(own: Candidate) -> str:
    """Return how long a candidate takes on all cores; "" if that is not needed."""
    if not (comparison := own.together):
        return "; not measured on all cores" * own.needs_all_cores
    verdict = ": neither a gain nor a loss is sure"
    if comparison.ratio.low >= MAX_LOSS:
        verdict = ": a loss"
    elif comparison.ratio.high < MAX_LOSS:
        verdict = "" if comparison.gains else ": no loss there, though no sure gain"
    same = f"{ratio_text(comparison.same)} there, by {processes_text(comparison)}"
    ratio = ratio_text(comparison.ratio)
    return f"; on all cores {ratio}, the default over itself {same}{verdict}"


def processes_text(comparison: Comparison) -> str:
    """Return the number of fresh processes behind a figure."""
    return f"{comparison.n_processes} process{'es' * (comparison.n_processes > 1)}"


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval."""
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def sources_text(result: OptimizeResult) -> str:
    """Return the number of candidates by source, and the best of each as screened."""
    best = {c.source: c.screened for c in sorted(result.tried, key=lambda c: -c.screened)}
    count = Counter(c.source for c in result.tried)
    parts = [f"{source} {count[source]}, best {best[source]:.3f}" for source in count]
    return "; ".join(["default 1", *parts[1:]])


def tried_text(result: OptimizeResult) -> str:
    """Return how many candidates were tried, and why no more."""
    tried, drawn = len(result.tried), result.n_drawn
    equal = f" of {drawn} that were drawn, the others equal to one of them" * (tried < drawn)
    why = "no more are new" if result.is_over else "no time for more"
    over = f"; {why}" * (drawn < result.request.n_candidates)
    if not over and all(c.source != SEARCH for c in result.tried):
        over = "; so few leave no room for the search"
    return f"{tried} candidates{equal}{over}"
