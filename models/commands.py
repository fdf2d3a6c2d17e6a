"""The `tune` command."""

from pathlib import Path
from typing import Annotated

import typer

from console import (
    DataDir,
    Debug,
    Json,
    Overrides,
    RecipeName,
    Seed,
    command,
    data_dir,
    print_json,
    print_table,
    progress_bar,
    say,
)


@command
def tune(
    out: Annotated[Path, typer.Option(help="Folder for trials and the winner's recipe.")],
    data: DataDir = None,
    recipe: RecipeName = "cpu",
    space: Annotated[str, typer.Option(help="Name in configs/tune/, or a .toml file.")] = "cpu",
    storage: Annotated[
        str | None, typer.Option(help="Journal file, or a database URL. Default: OUT/journal.log")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="All trials, earlier calls included.")] = 20,
    timeout_s: Annotated[float | None, typer.Option(help="Stop after this many seconds.")] = None,
    overrides: Overrides = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Search hyper-parameters on held-out train graphs; the same command again resumes.

    Example: python -m pipeline tune --recipe cpu --trials 20 --out runs/tune
    """
    from models.recipe import load_recipe
    from models.search_space import load_space
    from models.tuning import tune as search

    chosen = load_recipe(recipe, overrides or [], seed=seed)
    with progress_bar() as progress:
        result = search(
            chosen.model_dump(mode="json"),
            load_space(space),
            data_dir(data),
            storage=storage or out / "journal.log",
            trials=trials,
            out=out,
            timeout_s=timeout_s,
            say=say,
            progress=progress,
        )
    if json:
        print_json(result.as_dict())
        return
    print_table(("", "value"), [("baseline", result.baseline_value), ("best", result.best_value)])
    typer.echo(f"recipe      {result.best_recipe}")
