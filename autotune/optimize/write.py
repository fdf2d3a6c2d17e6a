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

from autotune.optimize.confirm import MOST_LOSS, SEARCH, Contestant, Pool, Ratio, told_text
from autotune.optimize.optimize import Optimized
from autotune.spaces import TILES, TOLERANCE
from common.files import write_bytes, write_text
from common.pages import render_page
from submissions.report.charts import Chart, library

BEST, APPLY, MODULE, PAGE = "best.json", "apply.py", "module.hlo.pb", "optimize.html"
TEMPLATE = Path(__file__).with_name("optimize.html.j2")
SHOWN = 12  # of the reasons why candidates failed
MOST_SHAPES = 80  # characters of the arguments' shapes in apply.py


def write_result(found: Optimized, out: Path) -> dict[str, Any]:
    """Write all files, best.json last; return what stands in that.

    Raises:
        PipelineError: a file cannot be written.
    """
    result, best = as_json(found), found.best if found.is_faster else None
    page = _page(found, result)
    applied = {MODULE: best.told.module, APPLY: apply_text(found, best).encode()} if best else {}
    for name in (MODULE, APPLY):
        if content := applied.get(name):
            write_bytes(out / name, content)
        else:
            (out / name).unlink(missing_ok=True)
    write_text(out / PAGE, page)
    write_text(out / BEST, json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


def as_json(found: Optimized) -> dict[str, Any]:
    """Return what was found, in milliseconds and as ratios over the default."""
    best, measured = found.best, found.measured
    used, together = best if found.is_faster else None, best and best.together
    return {
        "program": found.ask.program,
        "is_faster": found.is_faster,
        "default_ms": measured.default_ms,
        "best_ms": used and measured.default_ms * measured.ratio.value,
        **(_figures(measured) if best else {"ratio": None, "ci95": None}),
        "aa_ratio": measured.same.value,
        "aa_ci95": list(measured.same[1:]),
        "rounds": measured.n_rounds,
        "processes": measured.n_processes,
        "looks": measured.n_looks,
        "decisions": dict(used.told.decisions) if used else {},
        "default_decisions": dict(found.default_told.decisions),
        "source": best and best.candidate.source,
        "candidates": {
            "drawn": found.n_drawn,
            "tried": len(found.candidates),
            "by_source": dict(Counter(c.source for c in found.candidates)),
            "failed": sum(bool(candidate.reason) for candidate in found.candidates),
            "verified": len({*found.verified, *(f.candidate.choice for f in found.finalists)}),
            "unconfirmed": len(found.waiting),
        },
        "spaces": list(found.spaces),
        "seed": found.ask.seed,
        "tolerance": TOLERANCE,
        "threads": 1,
        "on_all_cores": together
        and {
            **_figures(together),
            "aa_ci95": list(together.same[1:]),
            "processes": together.n_processes,
            "looks": together.n_looks,
        },
        "environment": dict(found.facts),
    }


def _figures(pool: Pool) -> dict[str, Any]:
    return {"ratio": pool.ratio.value, "ci95": list(pool.ratio[1:])}


def apply_text(found: Optimized, best: Contestant) -> str:
    """Return the Python file that holds the function with the best choice applied."""
    module, _, name = found.ask.program.partition(":")
    told = (
        f"{best.alone.ratio.value:.2f} of the default's time by {processes_text(best.alone)}, "
        f"one thread on {found.facts.get('cpu')}{all_cores_text(best)}."
    )
    return render_page(
        Path(__file__).with_name("apply.py.j2"),
        **{"program": found.ask.program, "module": module, "name": name, "told": told},
        is_kernel=found.spaces == (TILES,),
        tile=best.told.decisions.get("tile"),
        is_edited=bool(best.told.module),
        module_file=MODULE,
        uncompared=uncompared_text(found),
        options=pformat(best.told.decisions.get("options", {})),
        digest=found.facts.get("function", ""),
        arguments=shorten(found.facts.get("arguments", "?"), MOST_SHAPES, placeholder=" …"),
    )


def _page(found: Optimized, result: Mapping[str, Any]) -> str:
    ran = sorted((c for c in found.candidates if not c.reason), key=lambda c: c.ratio)
    rows = [
        (f"finalist {n}{', earlier' * bool(turn)}{f' {turn}' * (turn > 1)}", ratio, *_words(own))
        for n, own in enumerate(found.finalists, start=1)
        for turn, ratio in enumerate([own.alone.ratio, *reversed(found.earlier(own))])
    ]
    confirmed = [own for own in found.contestants if own.is_confirmed]
    rows += [(f"confirmed {n}", o.alone.ratio, *_words(o)) for n, o in enumerate(confirmed, 1)]
    default = "default", told_text(found.default_told)
    rows.append(("default again", found.measured.same, *default))
    for n, own in enumerate(confirmed, start=1):
        if own.together:
            rows.append((f"on all cores {n}", own.together.ratio, *_words(own)))
            again = f"default again, on all cores {n}"
            rows.append((again, own.together.same, *default))
    by_source = {
        source: [(place, c.ratio) for place, c in enumerate(ran) if c.source == source]
        for source in dict.fromkeys(c.source for c in ran)
    }
    charts = [
        Chart(
            "candidates",
            "Candidates by time",
            f"{len(ran)} candidates ran; the fastest took {ran[0].ratio:.2f} of the default's "
            f"time, the slowest {ran[-1].ratio:.2f}, as screened: the fastest are partly lucky.",
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
        TEMPLATE,
        result=result,
        rows=[(name, ratio_text(ratio), *more) for name, ratio, *more in rows],
        charts=charts,
        tried=tried_text(found),
        sources=sources_text(found),
        together=all_cores_text(found.best) if found.best else "",
        verdict=verdict_text(found),
        uncompared=uncompared_text(found),
        halves=halves_text(found),
        library=library(),
        reasons=sorted({c.reason for c in found.candidates if c.reason})[:SHOWN],
    )


def _words(own: Contestant) -> tuple[str, str]:
    return own.candidate.source, told_text(own.told)


def verdict_text(found: Optimized) -> str:
    """Say why nothing is called faster, or that this is not known yet."""
    if n := len(found.waiting) or len([] if found.undecided else found.halves):
        were = "candidates were" if n > 1 else "candidate was"
        return f"{n} verified {were} not confirmed; the same command goes on"
    return f"nothing is surely faster than the default: {found.why_not}"


def uncompared_text(found: Optimized) -> str:
    """Name what a kernel's tiles are not compared with; "" of others."""
    of_kernel = "tiles alone; jax.jit(kernel.whole), without a loop, may be faster: time it too"
    return of_kernel if found.spaces == (TILES,) else ""


def halves_text(found: Optimized) -> list[str]:
    """Name what the time was over in the middle of confirming."""
    return [
        f"{told_text(told)} is half confirmed; the same command goes on" for told in found.halves
    ]


def confirmed_text(own: Contestant) -> str:
    """Say what was confirmed besides the best, and what became of it."""
    alone = f"{ratio_text(own.alone.ratio)}, one thread, by {processes_text(own.alone)}"
    return f"{alone}{all_cores_text(own)} ({told_text(own.told)})"


def all_cores_text(own: Contestant) -> str:
    """Say what a candidate takes on all cores, where that was measured."""
    if not (pool := own.together):
        return "; not measured on all cores" * own.is_checked
    told = ": a loss" if pool.ratio.low >= MOST_LOSS else ": neither a gain nor a loss is sure"
    if pool.ratio.high < MOST_LOSS:
        told = "" if pool.gains else ": no loss there, though no sure gain"
    same = f"{ratio_text(pool.same)} there, by {processes_text(pool)}"
    return f"; on all cores {ratio_text(pool.ratio)}, the default over itself {same}{told}"


def processes_text(pool: Pool) -> str:
    """Say how many fresh processes stand behind a figure."""
    return f"{pool.n_processes} process{'es' * (pool.n_processes > 1)}"


def ratio_text(ratio: Ratio) -> str:
    """Write a ratio with its interval."""
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def sources_text(found: Optimized) -> str:
    """Say how many candidates came from where, and the best of each as screened."""
    best = {c.source: c.ratio for c in sorted(found.candidates, key=lambda c: -c.ratio)}
    count = Counter(c.source for c in found.candidates)
    told = [f"{source} {count[source]}, best {best[source]:.3f}" for source in count]
    return "; ".join(["default 1", *told[1:]])


def tried_text(found: Optimized) -> str:
    """Say how many candidates were tried, and why no more."""
    tried, drawn = len(found.candidates), found.n_drawn
    alike = f" of {drawn} that were drawn, the others equal to one of them" * (tried < drawn)
    why = "no more are new" if found.is_over else "no time for more"
    over = f"; {why}" * (drawn < found.ask.n_candidates)
    if not over and all(c.source != SEARCH for c in found.candidates):
        over = "; so few leave no room for the search"
    return f"{tried} candidates{alike}{over}"
