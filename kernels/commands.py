"""The `kernel` commands: build, push, status."""

from pathlib import Path
from typing import Annotated

import typer

from console import Debug, Json, Seed, command, print_json

app = typer.Typer(help="Build Kaggle kernels from recipes, push and follow them.")


@app.command()
@command
def build(
    out: Annotated[Path, typer.Option(help="Folder for the kernel.")],
    recipe: Annotated[str, typer.Option(help="Name in configs/, or a .toml file.")] = "cpu",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key.")
    ] = None,
    gpu: Annotated[
        bool, typer.Option(help="Ask for Kaggle's T4; the recipes here train on the CPU.")
    ] = False,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Dataset to attach, owner/slug; may be repeated.")
    ] = None,
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Write a self-contained kernel that runs a recipe on Kaggle.

    Example: python -m pipeline kernel build --recipe cpu --out runs/kernel
    """
    from kernels.build import build as build_kernel
    from models.recipe import load_recipe

    chosen = load_recipe(recipe, overrides or [], seed=seed)
    table = chosen.model_dump(mode="json", exclude_none=True)
    kernel = build_kernel(chosen.name, table, out, gpu=gpu, dataset_sources=dataset or [])
    if json:
        print_json({"folder": str(kernel.folder), "script_bytes": kernel.script_bytes})
    else:
        typer.echo(f"kernel      {kernel.folder} ({kernel.script_bytes} bytes of script)")


@app.command()
@command
def push(
    folder: Annotated[Path, typer.Argument(help="What `kernel build` wrote.")],
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Send a built kernel to Kaggle, where it starts to run.

    Example: python -m pipeline kernel push runs/kernel
    """
    from kernels.push import push as send

    version = send(folder)
    if json:
        print_json({"kernel": version.kernel_id, "version": version.version, "url": version.url})
    else:
        typer.echo(f"pushed      {version.kernel_id} version {version.version}  {version.url}")


@app.command()
@command
def status(
    kernel: Annotated[str, typer.Argument(help="owner/slug; one's own needs no owner.")],
    json: Json = False,
    seed: Seed = None,
    debug: Debug = False,
) -> None:
    """Say how a kernel's latest run fares.

    Example: python -m pipeline kernel status fast-or-slow-cpu
    """
    from kernels.push import status as ask

    answer = ask(kernel)
    if json:
        print_json(
            {
                "kernel": answer.kernel_id,
                "state": answer.state,
                "failure_message": answer.failure_message,
            }
        )
    else:
        typer.echo(f"{answer.kernel_id}  {answer.state}  {answer.failure_message}".rstrip())
