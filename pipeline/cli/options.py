"""The options that several commands take."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the random numbers. Default: 0.")
]
FirstSeed = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="First seed of the recipe. The other seeds follow it."),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder that contains npz/. Default: PIPELINE_DATA, Kaggle's input folder, the "
        "folder of `fetch`, or the sample.",
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Folder of packed graphs. Default: a folder in PIPELINE_STORE, in data/store of the "
        "checkout, or in the user's cache folder.",
    ),
]
Collections = Annotated[
    str | None, typer.Option(help="Collections, for example tile,layout:xla. Default: all.")
]
Splits = Annotated[str | None, typer.Option(help="Splits, for example valid,test. Default: all.")]
Recipe = Annotated[
    str, typer.Option("--recipe", help="Name of a recipe in configs/, or a .toml file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a recipe key, for example seeds=[0,1]. Repeatable."
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="PACKAGE.MODULE:CLASS",
        help="Custom model that may be imported, because you know its code. Repeatable.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in the output folder.")]
MaxMinutes = Annotated[
    float | None,
    typer.Option(min=0, help="Stop after this number of minutes. You can resume later."),
]
Workers = Annotated[
    int | None,
    typer.Option("--workers", min=1, help="Number of parallel jobs. Default: all cores and GPUs."),
]
Ray = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help="Address of a Ray cluster, or local.")
]
LogTo = Annotated[
    list[str] | None,
    typer.Option(
        "--log-to", metavar="TRACKER", help="Tracker for metrics: tensorboard or wandb. Repeatable."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="Device for JAX: cpu, gpu or tpu. Default: JAX's choice.")
]
Static = Annotated[
    list[int] | None,
    typer.Option(
        "--static",
        min=0,
        metavar="N",
        help="Position of an argument of the function that is no array, from 0. Repeatable.",
    ),
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", min=1, metavar="N", help="Symbolic size of a jax.export artifact."),
]
Arguments = Annotated[
    Path | None,
    typer.Option(
        "--arguments",
        metavar="FILE.npz",
        help="Arguments of the program of a file, in the order of its parameters. Default: drawn.",
    ),
]
