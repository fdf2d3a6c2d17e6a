"""The options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Of what is drawn.")]
FirstSeed = Annotated[int | None, typer.Option("--seed", min=0, help="First of the seeds.")]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder that holds npz/. Default: PIPELINE_DATA, Kaggle's mount, what `fetch` wrote, "
        "the sample.",
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store", help="Folder of packed graphs. Default: one below PIPELINE_STORE or data/store."
    ),
]
Collections = Annotated[
    str | None, typer.Option(help="Such as tile,layout:xla or layout:nlp:random. Default: all.")
]
Splits = Annotated[str | None, typer.Option(help="Such as valid,test. Default: all.")]
Recipe = Annotated[
    str, typer.Option("--recipe", help="Name of a recipe in configs/, or a .toml file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key; may be repeated."),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="PACKAGE.MODULE:CLASS",
        help="Import this custom model, whose code you know; may be repeated.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was begun there.")]
MaxMinutes = Annotated[
    float | None, typer.Option(min=0, help="Stop after so many minutes; it can be gone on with.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Jobs at once. Default: all cores and GPUs.")
]
Ray = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help='Of a Ray cluster, or "local".')
]
LogTo = Annotated[
    list[str] | None,
    typer.Option("--log-to", metavar="TRACKER", help="tensorboard or wandb; may be repeated."),
]
Device = Annotated[str | None, typer.Option(help="cpu, gpu or tpu. Default: JAX's own.")]
