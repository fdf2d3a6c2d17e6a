"""The files that `optimize` writes: best.json and, if something is faster or probably so, apply.py.

`from DIR.apply import step` imports the faster function. The program of a file, and an edited
module, is a `jax.export` artifact next to apply.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from pprint import pformat
from textwrap import shorten
from typing import Any

from autotune.optimize.candidate import (
    MAX_LOSS,
    Comparison,
    OptimizeCandidate,
    Ratio,
    setting_text,
)
from autotune.optimize.optimize import OptimizeResult
from autotune.programs.catalogue import is_file
from autotune.same_outputs import TOLERANCE
from common.files import write_bytes, write_text
from common.pages import render_page
from data.hlo.compiler_options import EXTRA, extra_flag

CONDITIONS = {"tolerance": TOLERANCE, "threads": 1}
BEST, APPLY, PROGRAM = "best.json", "apply.py", "program.jax_export"
# Characters of the arguments' shapes in apply.py.
MAX_SHAPES = 80


def write_result(result: OptimizeResult, out: Path) -> dict[str, Any]:
    """Write all files, best.json last, and return its content."""
    content, best = as_json(result), result.usable
    program, script = (best.description.program, apply_text(result, best)) if best else (None, "")
    for name, data in ((PROGRAM, program), (APPLY, script.encode())):
        if data:
            write_bytes(out / name, data)
        else:
            (out / name).unlink(missing_ok=True)
    write_text(out / BEST, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return content


def as_json(result: OptimizeResult) -> dict[str, Any]:
    """Return a result as JSON, in milliseconds and as ratios over the default."""
    best, comparison, request = result.best, result.measured, result.request
    used, together = result.usable, best and best.together
    return {
        "program": request.program,
        "is_faster": result.is_faster,
        "is_probable": bool(used and used.is_probable),
        "default_ms": comparison.default_ms,
        "best_ms": comparison.default_ms * comparison.ratio.value if result.is_faster else None,
        "ratio": best and comparison.ratio.value,
        "ci95": best and list(comparison.ratio[1:]),
        "aa_ratio": comparison.same.value,
        "aa_ci95": list(comparison.same[1:]),
        "rounds": comparison.n_rounds,
        "processes": comparison.n_processes,
        "looks": comparison.n_looks,
        "decisions": dict(used.description.decisions) if used else {},
        "xla_flags": xla_flags(used) if used else "",
        "default_decisions": dict(result.default_description.decisions),
        "source": best and best.source,
        "search": request.search,
        "candidates": {
            "drawn": result.screening.n_drawn,
            "tried": len(result.candidates),
            "failed": sum(bool(candidate.failure) for candidate in result.candidates),
            "verified": sum(candidate.verified is not None for candidate in result.candidates),
        },
        "spaces": list(result.description.knobs),
        "seed": request.seed,
        **CONDITIONS,
        "on_all_cores": together
        and {
            "ratio": together.ratio.value,
            "ci95": list(together.ratio[1:]),
            "aa_ci95": list(together.same[1:]),
            "processes": together.n_processes,
            "looks": together.n_looks,
        },
        "environment": dict(result.description.facts),
    }


def apply_text(result: OptimizeResult, best: OptimizeCandidate) -> str:
    """Return a Python file with the function and the best setting."""
    program, description, comparison = result.request.program, best.description, best.comparison
    facts, options = result.description.facts, description.decisions.get("options", {})
    is_of_file, static = is_file(program), result.request.inputs.static
    module, _, name = ("", "", "") if is_of_file else program.partition(":")
    ratio = f"{comparison.ratio.value:.2f} of the default's time"
    machine = f"one thread on {facts.get('cpu')}"
    gain = f"{ratio} by {processes_text(comparison)}, {machine}{all_cores_text(best)}"
    if best.is_probable:
        gain = f"probably {gain}; {best.why_not}"
    return render_page(
        Path(__file__).with_name("apply.py.j2"),
        **{"program": program, "module": module, "name": name, "title": f"{program}: {gain}."},
        is_file=is_of_file,
        has_program=bool(description.program),
        program_file=PROGRAM,
        static=static,
        static_keyword=f"static_argnums={static}, " if static else "",
        options=pformat({name: value for name, value in options.items() if name != EXTRA}),
        extra=extra_flag(options.get(EXTRA)),
        flags=xla_flags(best),
        arguments=shorten(facts.get("arguments", "?"), MAX_SHAPES, placeholder=" …"),
    )


def xla_flags(candidate: OptimizeCandidate) -> str:
    """Return the compiler options of a candidate as a value of XLA_FLAGS."""
    options = candidate.description.decisions.get("options", {})
    texts = {name: str(v).lower() if isinstance(v, bool) else v for name, v in options.items()}
    return " ".join(f"--{name}={text}" for name, text in texts.items())


def all_cores_text(candidate: OptimizeCandidate) -> str:
    """Return the comparison on all cores. "" if it is not needed."""
    if not (comparison := candidate.together):
        return "; not measured on all cores" * candidate.needs_all_cores
    verdict = ": neither a gain nor a loss is sure"
    if comparison.ratio.low >= MAX_LOSS:
        verdict = ": a loss"
    elif comparison.ratio.high < MAX_LOSS:
        verdict = "" if comparison.gains else ": no loss there, though no sure gain"
    same_ratio = f"{ratio_text(comparison.same)} there, by {processes_text(comparison)}"
    ratio = ratio_text(comparison.ratio)
    return f"; on all cores {ratio}, the default over itself {same_ratio}{verdict}"


def processes_text(comparison: Comparison) -> str:
    """Return the number of fresh processes of a comparison."""
    return f"{comparison.n_processes} process{'es' * (comparison.n_processes > 1)}"


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio with its interval."""
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def summary_lines(result: OptimizeResult, out: Path) -> Iterator[str]:
    """Yield the lines that `optimize` prints below the table of finalists."""
    default, best = f"{result.measured.default_ms:.3f} ms", result.best
    if not result.is_faster:
        reason = f"nothing is surely faster than the default: {result.why_not}"
        yield f"default     {default}; {reason}"
    if best:
        label = "faster      " if result.is_faster else "best tried  "
        label = "probable    " if best.is_probable else label
        ratio = f"{ratio_text(best.comparison.ratio)} of the default's {default}"
        yield f"{label}{ratio}, {_evidence_text(best)}"
        yield f"by          {setting_text(best.description)}"
    for candidate in result.confirmed[1:]:
        ratio = ratio_text(candidate.comparison.ratio)
        decisions = setting_text(candidate.description)
        yield f"confirmed   {ratio}, {_evidence_text(candidate)} ({decisions})"
    itself = f"the default ({setting_text(result.default_description)}) over itself"
    yield f"itself      {ratio_text(result.measured.same)}: {itself}"
    n_tried, n_drawn = len(result.candidates), result.screening.n_drawn
    equal = f" of {n_drawn} that were drawn, the others equal to one of them"
    reasons = [candidate.failure for candidate in result.candidates if candidate.failure]
    failure_text = f"; {len(reasons)} failed: {reasons[0]}" if reasons else ""
    yield f"tried       {n_tried} candidates{equal * (n_tried < n_drawn)}{failure_text}"
    if best := result.usable:
        yield f"{'try' if best.is_probable else 'use'}         {out / APPLY}"
        if best.description.decisions.keys() == {"options"}:
            yield f'or          XLA_FLAGS="{xla_flags(best)}"'
        if flag := extra_flag(best.description.decisions.get("options", {}).get(EXTRA)):
            yield f"first       import {APPLY} before JAX makes an array: it sets XLA_FLAGS={flag}"


def _evidence_text(candidate: OptimizeCandidate) -> str:
    processes = processes_text(candidate.comparison)
    return f"one thread, by {processes}{all_cores_text(candidate)}"
