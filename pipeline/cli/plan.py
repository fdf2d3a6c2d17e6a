"""The command that tells what a recipe costs: plan."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import command, print_json, print_table, read_recipe, say

if TYPE_CHECKING:
    from pipeline.planning.plan import Plan
    from pipeline.run.simulated import SimulatedRun

GIB = 2**30
HOUR_S, CORES_PER_GPU = 3600, 8


@command
def plan(
    recipe: options.Recipe = "leaderboard",
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
    overrides: options.Overrides = None,
    json: options.Json = False,
) -> None:
    """Compute what a recipe costs.

    Example: python -m pipeline plan --recipe leaderboard --gpu a100 --gpus 2 --cores 16
    """
    from data.official.published import official_sizes
    from pipeline.planning.cards import CARDS
    from pipeline.planning.plan import Machine, calibrated, make_plan, sizes_of
    from pipeline.run.simulated import simulate_run

    card = CARDS.get(gpu)
    if gpus > 1 and not card:
        raise UsageError(f"--gpus {gpus}: there is no GPU with --gpu none")
    chosen = read_recipe(recipe, overrides)
    if gpus > 1 and chosen.accelerator == "cpu":
        raise UsageError(f'--gpus {gpus}: the recipe uses no GPU (accelerator = "cpu")')
    sizes = sizes_of(data) if data else official_sizes()
    machine = Machine(card, gpus)
    if calibrate:
        machine = calibrated(machine, chosen)
    made = make_plan(chosen, sizes, machine)
    simulated = simulate_run(chosen, sizes, machine, n_cores=cores or CORES_PER_GPU * gpus)
    if json:
        print_json(made.as_json() | {"simulated": asdict(simulated)})
        return
    _print_plan(made, simulated, counted=data is not None)


def _print_plan(made: "Plan", simulated: "SimulatedRun", *, counted: bool) -> None:
    header = (
        *("collection", "GPU h train", "rank", "CPU h prepare", "train", "rank", "score"),
        *("raw GiB", "store", "run", "peak GiB", "of"),
    )
    rows: list[tuple[Any, ...]] = []
    for row in made.collections:
        largest = max(row.peak_mib, key=lambda name: row.peak_mib[name], default=None)
        gpu = [_short(row.gpu_hours[stage]) for stage in ("train", "rank")]
        cpu = [_short(row.cpu_hours[stage]) for stage in ("prepare", "train", "rank", "score")]
        disk = [_short(row.disk_bytes[part] / GIB) for part in ("raw", "store", "run")]
        peak = largest and _short(row.peak_mib[largest] / 1024)
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
    if run.work.limit:
        typer.echo(f"limit       one after the other: {', '.join(run.work.limit)}")


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
