"""The command that tells what a recipe costs: plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.console import (
    Debug,
    Json,
    Overrides,
    RecipeName,
    command,
    print_json,
    print_table,
    say,
)

if TYPE_CHECKING:
    from pipeline.planning.budget import Fitted
    from pipeline.planning.plan import Plan

GIB = 2**30
GPU_SPEEDUP = 10.0
SESSION_HOURS = 11.5  # when kernels stop themselves, before Kaggle does after 12


@command
def plan(
    recipe: RecipeName = "leaderboard",
    data: Annotated[
        Path | None,
        typer.Option(help="Count the graphs of this folder. Default: the published sizes."),
    ] = None,
    gpu_speedup: Annotated[
        float,
        typer.Option(
            min=0,
            help="How much faster than one thread of the measured processor a GPU is taken to be; "
            "not measured. 0: no GPU.",
        ),
    ] = GPU_SPEEDUP,
    gpu_hours: Annotated[
        float | None, typer.Option(min=0.1, help="GPU hours a week: fit the recipe to them.")
    ] = None,
    session_hours: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Hours of one session of that GPU; Kaggle's kernels stop after 11.5 of 12.",
        ),
    ] = SESSION_HOURS,
    weeks: Annotated[int, typer.Option(min=1, help="Weeks that may be used.")] = 1,
    memory: Annotated[
        float | None, typer.Option(min=0.1, help="GiB that networks may take: fit the recipe.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the recipe that fits, which `run --recipe` takes.")
    ] = None,
    overrides: Overrides = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compute what a recipe costs, and fit it to a budget.

    Example: python -m pipeline plan --recipe leaderboard --gpu-hours 30 --weeks 4 --memory 14
    """
    from common.atomic import write_text
    from common.errors import UsageError
    from common.settings import ROOT
    from data.official.sizes import official_sizes
    from models.config.recipe import load_recipe
    from pipeline.planning.budget import Budget
    from pipeline.planning.laws import read_laws
    from pipeline.planning.memory import fit_memory
    from pipeline.planning.plan import fit_plan, make_plan, sizes_of

    if gpu_hours and not gpu_speedup:
        raise UsageError("--gpu-hours: there is no GPU with --gpu-speedup 0")
    if out and out.suffix != ".toml":
        raise UsageError(f"--out {out}: expected a name that ends in .toml, as recipes have")
    chosen = load_recipe(recipe, overrides or [])
    if gpu_hours and chosen.accelerator == "cpu":
        raise UsageError('--gpu-hours: the recipe uses no GPU (accelerator = "cpu")')
    laws = read_laws(ROOT / "benchmarks" / "rehearsal.json")
    sizes = sizes_of(data) if data else official_sizes()
    changed: list[str] = []
    if memory:
        chosen, changed = fit_memory(chosen, sizes, laws, limit_mib=memory * 1024)
    fitted = None
    if gpu_hours:
        budget = Budget(gpu_hours, session_hours, weeks)
        fitted = fit_plan(chosen, sizes, laws, budget, gpu_speedup=gpu_speedup)
        chosen = fitted.recipe
    made = make_plan(chosen, sizes, laws, gpu_speedup=gpu_speedup)
    if out:
        write_text(out, chosen.to_toml())
    if json:
        print_json(made.as_json() | {"settings": changed} | _fitted_json(fitted))
        return
    _print_plan(made, counted=data is not None)
    for setting in changed:
        typer.echo(f"memory      --set {setting}")
    if fitted:
        _print_sessions(fitted)
    if out:
        typer.echo(f"recipe      {out}")


def _fitted_json(fitted: "Fitted | None") -> dict[str, Any]:
    if fitted is None:
        return {}
    from dataclasses import asdict

    sessions = [asdict(session) | {"hours": session.hours} for session in fitted.sessions]
    return {"dropped": fitted.dropped, "sessions": sessions}


def _print_plan(made: "Plan", *, counted: bool) -> None:
    header = (
        *("collection", "GPU h train", "rank", "CPU h prepare", "train", "rank", "score"),
        *("raw GiB", "store", "run", "peak GiB", "of"),
    )
    rows: list[tuple[Any, ...]] = []
    for row in made.collections:
        largest = max(row.peak_mib, key=lambda name: row.peak_mib[name])
        gpu = [_short(row.gpu_hours[stage]) for stage in ("train", "rank")]
        cpu = [_short(row.cpu_hours[stage]) for stage in ("prepare", "train", "rank", "score")]
        disk = [_short(row.disk_bytes[part] / GIB) for part in ("raw", "store", "run")]
        peak = _short(row.peak_mib[largest] / 1024)
        rows.append((row.collection, *gpu, *cpu, *disk, peak, largest))
    print_table(header, rows)
    typer.echo(f"recipe      {made.recipe}, {made.seeds} seeds")
    typer.echo(f"GPU         {made.total('gpu_hours'):.1f} hours")
    typer.echo(f"CPU         {made.total('cpu_hours'):.1f} hours of one thread")
    typer.echo(f"disk        {made.total('disk_bytes') / GIB:.1f} GiB")
    whose = "" if counted else "; sizes of graphs are published ones"
    say(
        f"computed, not run: CPU seconds were measured on synthetic graphs, on one thread of "
        f"{made.machine.get('processor')}{whose}"
    )
    if made.gpu_speedup:
        say(
            f"GPU not measured: taken to be {made.gpu_speedup:g} times as fast as that thread "
            "(--gpu-speedup)"
        )


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _print_sessions(fitted: "Fitted") -> None:
    for text in fitted.dropped:
        typer.echo(f"dropped     {text}")
    rows = []
    for number, session in enumerate(fitted.sessions, start=1):
        what = ", ".join(f"{task} {hours:.1f}" for task, hours in session.parts)
        rows.append((number, session.week, session.collection, f"{session.hours:.1f}", what))
    print_table(("session", "week", "collection", "hours", "what, in hours"), rows)
