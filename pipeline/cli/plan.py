"""The command that tells what a recipe costs: plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import command, print_json, print_table, read_recipe, show

if TYPE_CHECKING:
    from models.config.recipe import Recipe
    from pipeline.planning.plan import ModelPlan, Plan

MIB, GIB = 2**20, 2**30
HOUR_S, CORES_PER_GPU = 3600, 8
MODELS_HEADER = (
    *("collection", "model", "runs", "steps", "step ms", "host ms", "train", "all runs", "rank"),
    *("on", "GPU memory", "memory", "files"),
)
STAGES_HEADER = ("collection", "prepare", "score", "raw data", "store", "run")


@command
def plan(
    recipe: options.Recipe = "leaderboard",
    gpu: Annotated[
        Literal["none", "t4", "a100", "h100", "h200"] | None,
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
    from pipeline.planning.costs import find_step_costs
    from pipeline.planning.plan import make_plan, official_graphs

    settings = read_recipe(recipe, overrides, trust=trust)
    if gpus > 1 and settings.accelerator == "cpu":
        raise UsageError(f'--gpus {gpus}: the recipe uses no GPU (accelerator = "cpu")')
    costs = find_step_costs(gpu, steps)
    if gpus > 1 and not costs.card:
        raise UsageError(f"--gpus {gpus}: there is no GPU; pass --gpu NAME")
    n_cores = cores or CORES_PER_GPU * gpus
    result = make_plan(settings, costs, official_graphs(), n_cards=gpus, n_cores=n_cores)
    if json:
        print_json(result.as_json())
    else:
        _print_plan(result, settings)


def _print_plan(plan: "Plan", recipe: "Recipe") -> None:
    print_table(MODELS_HEADER, [_row(row) for row in plan.models], if_known=MODELS_HEADER)
    show("")
    rows = []
    for row in plan.collections:
        hours = row.prepare_hours, row.score_hours
        rows.append((row.collection, *map(_time, hours), *map(_size, row.disk_bytes.values())))
    print_table(STAGES_HEADER, rows, if_known=STAGES_HEADER)
    show("", f"recipe      {recipe.name}, {len(recipe.seeds)} seeds")
    if plan.card and plan.gpu_hours:
        show(f"GPU         {_time(plan.gpu_hours)} of one {plan.card.name}")
    show(f"CPU         {_time(plan.cpu_hours)} of one thread")
    for name, key in (("raw data", "raw"), ("store", "store"), ("run files", "run")):
        show(f"{name:<12}{_size(plan.disk_bytes[key])}")
    cards = f"{plan.n_cards} {plan.card.name} and " if plan.card and plan.gpu_hours else ""
    least = _time(plan.min_run_hours)
    show(f"run         at least {least} on {cards}{plan.n_cores} cores")
    show(f"steps       {plan.source}")
    if plan.card:
        _print_what_does_not_fit(plan, plan.card.memory_gib, recipe)


def _row(row: "ModelPlan") -> tuple[str | None, ...]:
    return (
        row.collection,
        row.model,
        str(row.runs),
        f"{row.steps:,}" if row.steps else None,
        f"{row.step_ms:.3g}" if row.steps else None,
        f"{row.host_ms:.3g}" if row.host_ms else None,
        _time(row.train_hours),
        _time(row.train_hours * row.runs),
        _time(row.rank_hours),
        "GPU" if row.on_gpu else "CPU",
        _size(MIB * row.card_mib),
        _size(MIB * row.process_mib),
        _size(row.files_bytes),
    )


def _print_what_does_not_fit(plan: "Plan", card_gib: float, recipe: "Recipe") -> None:
    from data.tree import collection_named
    from models.training.device import TRAINING_KEYS, to_halve

    largest = {row.model: row for row in sorted(plan.models, key=lambda row: row.card_mib)}
    for model, row in largest.items():
        if MIB * row.card_mib > GIB * card_gib:
            needs = f"{model} needs {_size(MIB * row.card_mib)} of {card_gib:.1f} GiB"
            show(f"{needs} to train: halve one of")
            config = getattr(recipe.of(collection_named(row.collection)), model)
            above = f'collection."{row.collection}".' * (row.collection in recipe.collection)
            for key in to_halve(model, config, TRAINING_KEYS):
                show(f"  {above}{key}")


def _time(hours: float) -> str | None:
    return _in_unit(HOUR_S * hours, {"h": HOUR_S, "min": 60, "s": 1})


def _size(n_bytes: float) -> str | None:
    return _in_unit(n_bytes, {"GiB": GIB, "MiB": MIB})


def _in_unit(value: float, units: Mapping[str, int]) -> str | None:
    """Write a value with two digits in the largest unit that it reaches; None for nothing."""
    for unit, size in units.items():
        if value >= size:
            digits = 1 if value < 9.95 * size else 0
            return f"{value / size:.{digits}f} {unit}"
    return f"<1 {unit}" if value else None
