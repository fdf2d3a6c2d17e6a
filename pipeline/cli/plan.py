"""The command that tells what a recipe costs: plan."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from common.errors import UsageError
from pipeline.cli.console import Json, Overrides, RecipeName, command, print_json, print_table, say

if TYPE_CHECKING:
    from pipeline.planning.budget import Fitted
    from pipeline.planning.plan import Plan
    from pipeline.run.simulated import SimulatedRun

GIB = 2**30
HOUR_S, CORES_PER_GPU = 3600, 8


@command
def plan(
    recipe: RecipeName = "leaderboard",
    data: Annotated[
        Path | None, typer.Option(help="Count this folder's graphs. Default: the published ones.")
    ] = None,
    gpu: Annotated[
        Literal["none", "t4", "p100", "a100", "h100", "h200"],
        typer.Option(case_sensitive=False, help="The card, by its data sheet."),
    ] = "t4",
    gpus: Annotated[int, typer.Option(min=1, help="How many; each trains by itself.")] = 1,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores. Default: 8 for each GPU, or 8.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option(help="Time a training step here, and scale what networks take by that.")
    ] = False,
    gpu_hours: Annotated[
        float | None, typer.Option(min=0.1, help="GPU hours a week: fit the recipe to them.")
    ] = None,
    session_hours: Annotated[
        float, typer.Option(min=0.1, help="Of a session; Kaggle's kernels stop after 11.5 of 12.")
    ] = 11.5,
    weeks: Annotated[int, typer.Option(min=1, help="Weeks that may be used.")] = 1,
    memory: Annotated[float | None, typer.Option(min=0.1, help="GiB to fit the recipe to.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the recipe that fits.")] = None,
    overrides: Overrides = None,
    json: Json = False,
) -> None:
    """Compute what a recipe costs, and fit it to a budget.

    Example: python -m pipeline plan --recipe leaderboard --gpu-hours 30 --weeks 4 --memory 14
    """
    from common.atomic import write_text
    from data.official.published import official_sizes
    from models.config.recipe import load_recipe
    from pipeline.planning.budget import Budget
    from pipeline.planning.calibration import calibrated
    from pipeline.planning.cards import CARDS
    from pipeline.planning.costs import Machine
    from pipeline.planning.memory import fit_memory
    from pipeline.planning.plan import fit_plan, make_plan, sizes_of
    from pipeline.run.simulated import simulate_run

    card = CARDS.get(gpu)
    asked = "--gpu-hours" if gpu_hours else f"--gpus {gpus}" if gpus > 1 else ""
    if asked and not card:
        raise UsageError(f"{asked}: there is no GPU with --gpu none")
    if out and out.suffix != ".toml":
        raise UsageError(f"--out {out}: expected a name that ends in .toml, as recipes have")
    chosen = load_recipe(recipe, overrides or [])
    if asked and chosen.accelerator == "cpu":
        raise UsageError(f'{asked}: the recipe uses no GPU (accelerator = "cpu")')
    sizes = sizes_of(data) if data else official_sizes()
    machine = Machine(card, gpus)
    if calibrate:
        machine = calibrated(machine, chosen)
    changed: list[str] = []
    if memory:
        chosen, changed = fit_memory(chosen, sizes, machine, limit_mib=memory * 1024)
    fitted = None
    if gpu_hours:
        budget = Budget(gpu_hours, session_hours, weeks, gpus)
        fitted = fit_plan(chosen, sizes, machine, budget)
        chosen = fitted.recipe
    made = make_plan(chosen, sizes, machine)
    simulated = simulate_run(chosen, sizes, machine, n_cores=cores or CORES_PER_GPU * gpus)
    if out:
        write_text(out, chosen.to_toml())
    if json:
        facts = made.as_json() | {"settings": changed, "simulated": asdict(simulated)}
        if fitted:
            sessions = [asdict(session) | {"hours": session.hours} for session in fitted.sessions]
            facts |= {"dropped": fitted.dropped, "sessions": sessions}
        print_json(facts)
        return
    _print_plan(made, simulated, counted=data is not None)
    for setting in changed:
        typer.echo(f"memory      --set {setting}")
    if fitted:
        _print_sessions(fitted)
    if out:
        typer.echo(f"recipe      {out}")


def _print_plan(made: "Plan", simulated: "SimulatedRun", *, counted: bool) -> None:
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
    card = made.machine.card
    typer.echo(f"recipe      {made.recipe}, {made.seeds} seeds")
    gpu_hours = _short(made.total("gpu_hours"))
    typer.echo(f"GPU         {gpu_hours} hours of one {card.name if card else '-'}")
    typer.echo(f"CPU         {_short(made.total('cpu_hours'))} hours of one thread")
    typer.echo(f"disk        {made.total('disk_bytes') / GIB:.1f} GiB")
    _print_simulated(simulated, card.name if card else "")
    _print_card_memory(made)
    whose = "" if counted else "; sizes of graphs are published ones"
    say(
        "computed, not run: what networks do was counted, the rest of the processor's seconds "
        f"measured on synthetic graphs, on one thread of an AMD EPYC{whose}"
    )
    measured = made.machine.measured
    if measured:
        say(f"{measured}: what networks take there is scaled by that, and nothing else")
    if card and made.machine.gpu_scale == 1:
        how = "there is none here" if measured else "--calibrate"
        say(f"GPU not measured: a {card.name} is taken at shares of its data sheet ({how})")


def _print_simulated(run: "SimulatedRun", card: str) -> None:
    cards = f"{run.n_gpus} {card} and " if run.n_gpus else ""
    who = "GPUs" if run.n_gpus else "workers"
    parts = (run.prepare.seconds, run.work.seconds, run.score_s)
    packing, work, scores = (_short(seconds / HOUR_S) for seconds in parts)
    typer.echo(
        f"run         {_short(run.hours)} hours on {cards}{run.n_cores} cores: packing {packing}, "
        f"trainings and rankings {work} ({who} at work {run.work.efficiency:.0%}), scores {scores}"
    )
    if run.work.is_limited_by_it:
        typer.echo(f"limit       one after the other: {', '.join(run.work.longest_way)}")


def _print_card_memory(made: "Plan") -> None:
    if made.card_memory:
        rows = [
            (
                *(one.model, one.stage, f"{one.peak_gib:.1f}", f"{one.card_gib:.1f}", one.fits),
                f"halve one of {', '.join(one.halve)}" if one.halve else None,
            )
            for one in made.card_memory
        ]
        header = ("network", "stage", "peak GiB", "of the card's", "fits", "to do")
        print_table(header, rows, if_known=("to do",))


def _short(value: float) -> str:
    """Write a number with two significant digits, or all those before the point."""
    digits = 1 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:.{max(0, digits)}f}"


def _print_sessions(fitted: "Fitted") -> None:
    for text in fitted.dropped:
        typer.echo(f"dropped     {text}")
    rows: list[tuple[Any, ...]] = []
    for number, session in enumerate(fitted.sessions, start=1):
        for card, lane in enumerate(session.lanes, start=1):
            what = ", ".join(f"{task} {_short(hours)}" for task, hours in lane)
            which = card if len(session.lanes) > 1 else None
            place = (number, session.week, session.collection, _short(session.hours))
            rows.append((*place, which, what or None))
    header = ("session", "week", "collection", "hours", "card", "what, in hours")
    print_table(header, rows, if_known=("card",))
