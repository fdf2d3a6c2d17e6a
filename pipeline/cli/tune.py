"""The `tune` command, and `tune report`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from common.errors import UsageError
from pipeline.cli import options
from pipeline.cli.console import command, data_dir, print_json, print_table, say

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@app.callback()
@command
def tune(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Of trials and best.toml; required.")] = None,
    data: options.Data = None,
    recipe: options.Recipe = "cpu",
    space: Annotated[str, typer.Option(help="Name in configs/tune/, or a .toml file.")] = "cpu",
    storage: Annotated[
        str | None, typer.Option(help="Journal file, or a database URL. Default: OUT/journal.log.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="All trials, earlier calls included.")] = 20,
    workers: Annotated[int, typer.Option(min=1, help="Trials at once, each on its own GPU.")] = 1,
    ray: options.Ray = None,
    max_minutes: options.MaxMinutes = None,
    overrides: options.Overrides = None,
    json: options.Json = False,
    seed: options.Seed = None,
) -> None:
    """Search hyper-parameters on held-out train graphs.

    The same command again resumes; beside it, or on another machine with one database URL, it
    shares the budget.

    Example: python -m pipeline tune --recipe cpu --trials 20 --workers 2 --out runs/tune
    """
    if context.invoked_subcommand:
        return
    if out is None:
        raise UsageError("tune: --out is missing; expected the folder for trials and the recipe")
    from models.config.recipe import load_recipe
    from pipeline.jobs.workers import Workers
    from pipeline.tuning.objective import load_space
    from pipeline.tuning.tune import tune as search

    chosen = load_recipe(recipe, overrides or [], seed=seed)
    held, who = storage or out / "journal.log", Workers(workers, ray)
    wanted = load_space(space, chosen)
    result = search(
        chosen, wanted, data_dir(data), storage=held, trials=trials, out=out, workers=who
    )
    if json:
        print_json(asdict(result))
        return
    print_table(("", "value"), [("baseline", result.baseline_value), ("best", result.best.value)])
    typer.echo(f"recipe      {result.best_recipe}")
    say("note: the best of many trials is partly lucky: judge its recipe on the valid split")


@app.command("report")
@command
def report(
    out: Annotated[Path, typer.Option(help="The --out of a search, running or ended.")],
    storage: Annotated[str | None, typer.Option(help="Default: OUT/journal.log.")] = None,
) -> None:
    """Draw a search: write OUT/tune.html.

    It shows history, importances, and what each parameter does.

    Example: python -m pipeline tune report --out runs/tune
    """
    from pipeline.tuning.result import write_tune_report

    typer.echo(f"page        {write_tune_report(out, storage)}")
