"""The `dataset` command: push."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.console import Debug, Json, Seed, command, print_json, say

app = typer.Typer(no_args_is_help=True)


@app.callback()
def dataset() -> None:
    """Send what kernels need to Kaggle as datasets."""


@app.command()
@command
def push(
    folder: Annotated[Path, typer.Argument(help="What `kernel wheels` or `kernel weights` wrote.")],
    message: Annotated[str, typer.Option("-m", "--message", help="What is new in this version.")],
    wait_minutes: Annotated[
        float,
        typer.Option(min=0, help="Minutes to wait until Kaggle has processed the files, at most."),
    ] = 30,
    force: Annotated[
        bool, typer.Option("--force", help="Send what the last push has sent once more.")
    ] = False,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Create a private dataset, or make its next version.

    It waits until kernels can attach it.

    Example: python -m pipeline dataset push runs/wheels -m "torch-geometric 2.8.1"
    """
    from kernels.datasets.push import push_dataset

    made = push_dataset(folder, message, force=force, wait_minutes=wait_minutes, say=say)
    if json:
        facts = {
            "dataset": made.dataset_id,
            "version": made.version,
            "created": made.is_new,
            "sent": made.was_sent,
        }
        print_json({**facts, "files": made.files, "url": made.url})
    else:
        verb = "created" if made.is_new else "updated" if made.was_sent else "unchanged"
        typer.echo(f"{verb:<12}{made.dataset_id} version {made.version}  {made.url}")
