"""The command that tells what a recipe costs: plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import command, print_json, print_table, read_recipe, say

if TYPE_CHECKING:
    from pipeline.planning.plan import CollectionPlan, Plan

MIB, GIB = 2**20, 2**30
HOUR_S, CORES_PER_GPU = 3600, 8
HEADER = (
    *("collection", "GPU: train", "rank", "CPU: prepare", "train", "rank", "score"),
    *("disk", "peak memory"),
)


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
    trust: options.Trust = None,
    json: options.Json = False,
) -> None:
    """Compute what a recipe costs.

    Example: python -m pipeline plan --recipe leaderboard --gpu a100 --gpus 2 --cores 16
    """
    from data.official.published import official_sizes
    from data.sizes import sizes_of
    from pipeline.planning.cards import CARDS, Machine
    from pipeline.planning.plan import KEPT_PER_CONFIGURABLE, calibrated, make_plan

    card = CARDS.get(gpu)
    if gpus > 1 and not card:
        raise UsageError(f"--gpus {gpus}: there is no GPU with --gpu none")
    chosen = read_recipe(recipe, overrides, trust=trust)
    if gpus > 1 and chosen.accelerator == "cpu":
        raise UsageError(f'--gpus {gpus}: the recipe uses no GPU (accelerator = "cpu")')
    sizes = sizes_of(data) if data else official_sizes()
    machine = Machine(card, gpus, cores or CORES_PER_GPU * gpus)
    if calibrate:
        machine = calibrated(machine, chosen)
    made = make_plan(chosen, sizes, machine)
    if json:
        print_json(made.as_json())
        return
    _print_plan(made, counted=data is not None)
    if (rule := chosen.features.prune) not in ("none", *KEPT_PER_CONFIGURABLE):
        say(
            f"what features.prune={rule} keeps was not counted: networks are taken to see all nodes"
        )


def _print_plan(made: "Plan", *, counted: bool) -> None:
    for kind in ("tile", "layout"):
        rows = [_row(row) for row in made.collections if row.collection.startswith(f"{kind}:")]
        if rows:
            print_table(HEADER, rows, if_known=HEADER)
            typer.echo("")
    card = made.machine.card
    gpu_s, cpu_s = (HOUR_S * made.total(table) for table in ("gpu_hours", "cpu_hours"))
    typer.echo(f"recipe      {made.recipe}, {made.seeds} seeds")
    if card and gpu_s:
        typer.echo(f"GPU         {_time(gpu_s)} of one {card.name}")
    typer.echo(f"CPU         {_time(cpu_s)} of one thread")
    typer.echo(f"disk        {_size(made.total('disk_bytes'))}")
    least = _time(HOUR_S * made.min_run_hours)
    cards = f"{made.machine.n_cards} {card.name} and " if card and gpu_s else ""
    typer.echo(f"run         at least {least} on {cards}{made.machine.n_cores} cores")
    _print_card_memory(made)
    say("computed, not run: networks are counted, the rest was measured on a thread of an EPYC")
    if not counted:
        say("sizes of graphs are the published ones")
    measured = made.machine.measured
    if measured:
        say(f"{measured}: what networks take there is scaled by that, and nothing else")
    if card and made.machine.gpu_scale == 1:
        how = "there is none here" if measured else "--calibrate"
        say(f"GPU not measured: a {card.name} is taken at shares of its data sheet ({how})")


def _row(plan: "CollectionPlan") -> tuple[str | None, ...]:
    gpu, cpu = (
        {stage: _time(HOUR_S * hours) for stage, hours in table.items()}
        for table in (plan.gpu_hours, plan.cpu_hours)
    )
    times = gpu["train"], gpu["rank"], cpu["prepare"], cpu["train"], cpu["rank"], cpu["score"]
    disk, peak = sum(plan.disk_bytes.values()), MIB * max(plan.peak_mib.values(), default=0.0)
    return plan.collection, *times, _size(disk), _size(peak)


def _print_card_memory(made: "Plan") -> None:
    if not made.card_memory:
        return
    typer.echo("")
    peaks = {(one.model, one.stage): _size(GIB * one.peak_gib) for one in made.card_memory}
    unfit = [one for one in made.card_memory if not one.fits]
    rows = [
        (model, peaks.get((model, "train")), peaks.get((model, "rank")), fits)
        for model in dict.fromkeys(one.model for one in made.card_memory)
        for fits in [not any(one.model == model for one in unfit)]
    ]
    fits = f"fits {made.card_memory[0].card_gib:.1f} GiB"
    print_table(("network, GPU memory", "train", "rank", fits), rows)
    for one in unfit:
        typer.echo(f"{one.model} does not fit to {one.stage}: halve one of")
        typer.echo("\n".join(f"  {key}" for key in one.halve))


def _time(seconds: float) -> str | None:
    return _scaled(seconds, {"h": HOUR_S, "min": 60, "s": 1})


def _size(n_bytes: float) -> str | None:
    return _scaled(n_bytes, {"GiB": GIB, "MiB": MIB})


def _scaled(value: float, units: Mapping[str, int]) -> str | None:
    """Write a value with two digits in the largest unit that it reaches; None for nothing."""
    for unit, size in units.items():
        if value >= size:
            digits = 1 if value < 9.95 * size else 0
            return f"{value / size:.{digits}f} {unit}"
    return f"<1 {unit}" if value else None
