"""The command that tells what a recipe costs: plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import command, print_json, print_table, read_recipe, say

if TYPE_CHECKING:
    from models.config.recipe import Recipe
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
    gpu: Annotated[
        Literal["none", "t4", "p100", "a100", "h100", "h200"] | None,
        typer.Option(
            case_sensitive=False, help="Type of GPU. Default: the device of this machine."
        ),
    ] = None,
    steps: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of measured steps. Default: runs/gpu/steps.json if it exists."
        ),
    ] = None,
    gpus: Annotated[
        int, typer.Option(min=1, help="Number of GPUs. Each trains one model at a time.")
    ] = 1,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU cores. Default: 8 per GPU.")
    ] = None,
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    json: options.Json = False,
) -> None:
    """Compute the time, memory and disk that a recipe needs.

    Example: fast-or-slow plan --recipe leaderboard --gpu a100 --gpus 2 --cores 16
    """
    from data.official.published import official_sizes
    from pipeline.planning.plan import make_plan
    from pipeline.planning.step_costs import find_step_costs

    chosen = read_recipe(recipe, overrides, trust=trust)
    if gpus > 1 and chosen.accelerator == "cpu":
        raise UsageError(f'--gpus {gpus}: the recipe uses no GPU (accelerator = "cpu")')
    costs = find_step_costs(chosen, gpu, steps)
    if gpus > 1 and not costs.card:
        raise UsageError(f"--gpus {gpus}: there is no GPU; pass --gpu NAME")
    made = make_plan(costs, official_sizes(), n_cards=gpus, n_cores=cores or CORES_PER_GPU * gpus)
    if json:
        print_json(made.as_json() | {"steps": costs.source})
        return
    _print_plan(made, chosen)
    say(f"training steps: {costs.source}")


def _print_plan(made: "Plan", recipe: "Recipe") -> None:
    from pipeline.planning.plan import total

    for kind in ("tile", "layout"):
        rows = [_row(row) for row in made.collections if row.collection.startswith(f"{kind}:")]
        if rows:
            print_table(HEADER, rows, if_known=HEADER)
            typer.echo("")
    gpu_s, cpu_s = (HOUR_S * total(made.collections, table) for table in ("gpu_hours", "cpu_hours"))
    typer.echo(f"recipe      {made.recipe}, {made.seeds} seeds")
    if made.card and gpu_s:
        typer.echo(f"GPU         {_time(gpu_s)} of one {made.card.name}")
    typer.echo(f"CPU         {_time(cpu_s)} of one thread")
    typer.echo(f"disk        {_size(total(made.collections, 'disk_bytes'))}")
    cards = f"{made.n_cards} {made.card.name} and " if made.card and gpu_s else ""
    least = _time(HOUR_S * made.min_run_hours)
    typer.echo(f"run         at least {least} on {cards}{made.n_cores} cores")
    if made.card and made.card_gib:
        _print_card_memory(made, made.card.memory_gib, recipe)


def _row(plan: "CollectionPlan") -> tuple[str | None, ...]:
    gpu, cpu = (
        {stage: _time(HOUR_S * hours) for stage, hours in table.items()}
        for table in (plan.gpu_hours, plan.cpu_hours)
    )
    times = gpu["train"], gpu["rank"], cpu["prepare"], cpu["train"], cpu["rank"], cpu["score"]
    disk, peak = sum(plan.disk_bytes.values()), MIB * max(plan.peak_mib.values(), default=0.0)
    return plan.collection, *times, _size(disk), _size(peak)


def _print_card_memory(made: "Plan", card_gib: float, recipe: "Recipe") -> None:
    from data.tree import collection_named
    from models.training.device import TRAINING_KEYS, to_halve

    typer.echo("")
    rows = [(model, _size(GIB * gib), gib <= card_gib) for model, gib in made.card_gib.items()]
    print_table(("network", "GPU memory", f"fits {card_gib:.1f} GiB"), rows)
    for model, _, fits in rows:
        if not fits:
            typer.echo(f"{model} does not fit to train: halve one of")
            most = max(made.collections, key=lambda row: row.peak_mib.get(model, 0.0))
            config = getattr(recipe.of(collection_named(most.collection)), model)
            above = f'collection."{most.collection}".' * (most.collection in recipe.collection)
            for key in to_halve(model, config, TRAINING_KEYS):
                typer.echo(f"  {above}{key}")


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
