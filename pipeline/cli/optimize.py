"""The command `optimize`: a configuration of a JAX function that is verified to be faster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.console import Json, Seed, command, print_json, print_table

if TYPE_CHECKING:
    from pipeline.optimize.optimize import Optimized


@command
def optimize(
    program: Annotated[str, typer.Option(help="package.module:function, or a catalogue's name.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; the same command goes on.")],
    minutes: Annotated[float, typer.Option(min=0.1, help="How long it may take.")] = 10.0,
    space: Annotated[
        str, typer.Option(help="What is decided: options,layouts,fusion; or tiles of a kernel.")
    ] = "options",
    run: Annotated[
        Path | None, typer.Option(help="Run whose models propose layouts, or tiles.")
    ] = None,
    candidates: Annotated[int, typer.Option(min=2, help="How many to compile at most.")] = 60,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Of a candidate.")] = 60.0,
    device: Annotated[str | None, typer.Option(help="cpu, gpu or tpu. Default: JAX's own.")] = None,
    json: Json = False,
    seed: Seed = None,
) -> None:
    """Find a faster configuration of a JAX function on this machine, and verify it.

    Ends with OUT/best.json, OUT/apply.py, which holds the function as fast as was found, and
    OUT/optimize.html. Where nothing is faster than the compiler's default, it says so.

    Example: python -m pipeline optimize --program my_model:step --out DIR
    """
    from pipeline.optimize.optimize import Ask
    from pipeline.optimize.optimize import optimize as search
    from pipeline.optimize.write import BEST, write_result

    spaces = tuple(dict.fromkeys(space.split(",")))
    seeded = seed or 0
    ask = Ask(program, spaces, candidates, timeout_s=timeout_s, seed=seeded, device=device)
    pick = None
    if run is not None:
        from pipeline.optimize.ranker import pick_by

        pick = pick_by(run, ask)
    found = search(ask, out, minutes=minutes, pick=pick)
    result = write_result(found, out)
    if json:
        print_json(result)
    else:
        _tell(found, out / BEST)


def _tell(found: "Optimized", path: Path) -> None:
    from pipeline.optimize import write

    rows = [
        (v.candidate.source, write.ratio_text(v.ratio), write.told_text(v)) for v in found.finalists
    ]
    if rows:
        print_table(("from", "time / default's", "decisions"), rows)
    default, ratio = (
        f"{found.confirmed.default_ms:.3f} ms",
        found.best and write.ratio_text(found.best.ratio),
    )
    together, why_not = write.all_cores_text(found), write.why_not_text(found)
    if not found.is_faster:
        typer.echo(f"default     nothing is surely faster than its {default}: {why_not}")
    if found.best:
        label = "faster      " if found.is_faster else "best tried  "
        typer.echo(f"{label}{ratio} of the default's {default}, one thread{together}")
        typer.echo(f"by          {write.told_text(found.best)}")
    typer.echo(f"itself      {write.ratio_text(found.confirmed.same)}: the default over itself")
    reasons = [candidate.reason for candidate in found.candidates if candidate.reason]
    failed = f"; {len(reasons)} failed: {reasons[0]}" if reasons else ""
    typer.echo(f"tried       {write.tried_text(found)}{failed}")
    typer.echo(f"as screened {write.sources_text(found)}")
    typer.echo(f"use         {path.with_name(write.APPLY)}")
    typer.echo(f"page        {path.with_name(write.PAGE)}")
