"""The command that searches hyper-parameters: tune."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import options
from pipeline.cli.console import command, data_dir, print_json, print_table, read_recipe, say, show


@command
def tune(
    out: Annotated[Path, typer.Option(help="Folder for the trials and best.toml.")],
    data: options.Data = None,
    recipe: options.Recipe = "cpu",
    space: Annotated[
        str, typer.Option(help="Search space: a name in configs/tune/, or a .toml file.")
    ] = "cpu",
    storage: Annotated[
        str | None, typer.Option(help="Journal file or database URL. Default: OUT/journal.log.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Total number of trials, including earlier calls.")
    ] = 20,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of parallel trials. Each has its own GPU.")
    ] = 1,
    ray: options.Ray = None,
    max_minutes: options.MaxMinutes = None,
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    json: options.Json = False,
    seed: options.FirstSeed = None,
) -> None:
    """Search hyper-parameters with held-out train graphs.

    The same command resumes. Several machines can share a search through one database URL.

    Example: fast-or-slow tune --recipe cpu --trials 20 --workers 2 --out runs/tune
    """
    from pipeline.tuning.space import load_space

    settings = read_recipe(recipe, overrides, seed, trust=trust)
    searched, folder = load_space(space, settings), data_dir(data)
    from common.jobs.workers import Workers
    from pipeline.tuning.page import PAGE
    from pipeline.tuning.tune import tune as search

    result = search(
        settings,
        searched,
        folder,
        storage=storage or out / "journal.log",
        trials=trials,
        out=out,
        workers=Workers(workers, ray),
    )
    if json:
        print_json(asdict(result))
        return
    best = "best" if result.best.is_baseline else f"best, trial {result.best.number}"
    print_table(("", "value"), [("baseline", result.baseline_value), (best, result.best.value)])
    show(f"recipe      {result.best_recipe}", f"report      {out / PAGE}")
    if not result.best.is_baseline:
        say("note: the best of many trials is partly lucky: judge its recipe on the valid split")
