"""The `kernel` commands build, push, status, output, wheels and weights, and `dataset push`."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import options
from pipeline.cli.console import command, print_result, read_recipe, say

ABOUT = """Build Kaggle kernels from recipes, push and follow them.

Example: python -m pipeline kernel build --recipe cpu --out runs/kernel
"""

app = typer.Typer(help=ABOUT, no_args_is_help=True)
dataset_app = typer.Typer(no_args_is_help=True)


@app.command()
@command
def build(
    out: Annotated[Path, typer.Option(help="Folder for the kernel.")],
    recipe: options.Recipe = "cpu",
    kind: Annotated[
        str, typer.Option(help="run: the recipe; train: a collection; infer: by attached models.")
    ] = "run",
    collection: Annotated[
        str | None, typer.Option(help="What a train kernel trains, such as layout:xla:default.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option(help="Minutes until it stops itself. Default: 690, of 720.")
    ] = None,
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    gpu: Annotated[
        bool | None,
        typer.Option(help="Ask for Kaggle's T4 pair. Default: if the recipe has a network."),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Dataset to attach, owner/slug; may be repeated.")
    ] = None,
    kernel: Annotated[
        list[str] | None, typer.Option(help="Kernel whose output to attach; may be repeated.")
    ] = None,
    title: Annotated[
        str, typer.Option(help="The kernel's, before the kind's words. Default: from the recipe.")
    ] = "",
    seed: options.FirstSeed = None,
) -> None:
    """Write a self-contained kernel that works by a recipe on Kaggle.

    Each goes on with its own attached output, in as many versions as it takes.

    Example: python -m pipeline kernel build --recipe cpu --out runs/kernel
    """
    from common.settings import recipe_path
    from kernels.build import build as build_kernel
    from kernels.build import kind_named

    chosen = read_recipe(recipe, overrides, seed, trust=trust)
    source = build_kernel(
        chosen.name,
        chosen.model_dump(mode="json", exclude_none=True),
        out,
        kind=kind_named(kind, collection, max_minutes),
        gpu=any(map(chosen.training_of, chosen.all_models)) if gpu is None else gpu,
        dataset_sources=dataset or [],
        kernel_sources=kernel or [],
        title=title,
        beside=recipe_path(recipe).parent,
    )
    typer.echo(f"kernel      {out} ({source.stat().st_size} bytes of script)")


@app.command()
@command
def push(folder: Annotated[Path, typer.Argument(help="What `kernel build` wrote.")]) -> None:
    """Send a built kernel to Kaggle, where it starts to run.

    Example: python -m pipeline kernel push runs/kernel
    """
    from kernels.remote import push as send

    sent = send(folder)
    typer.echo(f"pushed      {sent.kernel_id} version {sent.version}  {sent.url}")


@app.command()
@command
def status(
    kernel: Annotated[str, typer.Argument(help="owner/slug; one's own needs no owner.")],
    json: options.Json = False,
) -> None:
    """Say how a kernel's latest run fares.

    Example: python -m pipeline kernel status fast-or-slow-cpu
    """
    from kernels.remote import status as ask

    answer = ask(kernel)
    line = f"{answer.kernel_id}  {answer.state}  {answer.failure_message}".rstrip()
    print_result(answer._asdict(), line, as_json=json)


@app.command()
@command
def output(
    kernel: Annotated[str, typer.Argument(help="owner/slug; one's own needs no owner.")],
    out: Annotated[Path, typer.Option(help="New folder for what the kernel wrote.")],
    json: options.Json = False,
) -> None:
    """Fetch what a finished kernel wrote, and its log.

    The same command resumes a download that broke off.

    Example: python -m pipeline kernel output fast-or-slow-cpu --out runs/kernel-output
    """
    from kernels.remote import fetch_output

    got = fetch_output(kernel, out)
    if got.unfinished:
        say(f"not finished: build it again with --kernel {got.kernel_id} attached, and push")
    whose = f"{got.files} files of {got.kernel_id} version {got.version}"
    print_result(got._asdict(), f"output      {got.folder} ({whose})", as_json=json)


@app.command()
@command
def wheels(out: Annotated[Path, typer.Option(help="New folder for the dataset.")]) -> None:
    """Download the wheels that Kaggle's image lacks.

    They have the pinned versions, and lie in a dataset folder.

    Example: python -m pipeline kernel wheels --out runs/wheels
    """
    from kernels.datasets import write_wheels

    typer.echo(f"wheels      {out} ({', '.join(path.name for path in write_wheels(out))})")


@app.command()
@command
def weights(
    run: Annotated[Path, typer.Option(help="A run, a model's folder, or a kernel's output.")],
    out: Annotated[Path, typer.Option(help="New folder for the dataset.")],
    title: Annotated[str, typer.Option(help="The dataset's, 6 to 50 characters.")] = (
        "Fast or slow weights"
    ),
) -> None:
    """Put what ranking needs of trained models into a dataset folder.

    Example: python -m pipeline kernel weights --run runs/mine --out runs/weights
    """
    from kernels.datasets import write_weights

    typer.echo(f"weights     {out} ({len(write_weights(run, out, title=title))} models)")


@dataset_app.callback()
def dataset() -> None:
    """Send what kernels need to Kaggle as datasets.

    Example: python -m pipeline dataset push runs/wheels -m "pinned versions"
    """


@dataset_app.command("push")
@command
def push_dataset(
    folder: Annotated[Path, typer.Argument(help="What `kernel wheels` or `kernel weights` wrote.")],
    message: Annotated[str, typer.Option("-m", "--message", help="What is new in this version.")],
) -> None:
    """Create a private dataset, or make its next version.

    Kernels can attach it once its page shows that it is ready, usually after some minutes.

    Example: python -m pipeline dataset push runs/wheels -m "torch-geometric 2.8.1"
    """
    from kernels.datasets import push_dataset as send

    sent = send(folder, message)
    typer.echo(f"{sent.made:<12}{sent.dataset_id}  {sent.url}")
