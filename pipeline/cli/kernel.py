"""The `kernel` commands, for example `kernel build` and `kernel chain`, and `dataset push`."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import options
from pipeline.cli.console import command, print_result, read_recipe, say, show

ABOUT = """Build Kaggle kernels, push them, and get their output.

Example: fast-or-slow kernel build --recipe cpu --out runs/kernel
"""

Datasets = Annotated[
    list[str] | None,
    typer.Option("--dataset", help="Dataset to attach, as OWNER/SLUG. Repeatable."),
]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--max-minutes", help="Minutes until a kernel stops. Default: 690 of Kaggle's 720."
    ),
]
KernelName = Annotated[
    str, typer.Argument(help="Kernel as OWNER/SLUG, or SLUG for your own kernel.")
]

app = typer.Typer(help=ABOUT, no_args_is_help=True)
dataset_app = typer.Typer(no_args_is_help=True)


@app.command()
@command
def build(
    out: Annotated[Path, typer.Option(help="Folder for the kernel.")],
    recipe: options.Recipe = "cpu",
    kind: Annotated[
        str,
        typer.Option(
            help="Kind: run (the recipe), train (one collection), or infer (ranking with attached "
            "models)."
        ),
    ] = "run",
    collection: Annotated[
        str | None,
        typer.Option(help="Collection of a train kernel, for example layout:xla:default."),
    ] = None,
    max_minutes: Minutes = None,
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    gpu: Annotated[
        bool | None,
        typer.Option(help="Use two T4 GPUs on Kaggle. Default: yes for a recipe with a network."),
    ] = None,
    dataset: Datasets = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option(help="Kernel whose output is attached, as OWNER/SLUG. Repeatable."),
    ] = None,
    title: Annotated[
        str,
        typer.Option(help="First words of the kernel's title. Default: the name of the recipe."),
    ] = "",
    seed: options.FirstSeed = None,
) -> None:
    """Write a Kaggle kernel that runs a recipe.

    The kernel resumes if its own output is attached. A long run can take several versions.

    Example: fast-or-slow kernel build --recipe cpu --out runs/kernel
    """
    from common.settings import recipe_path
    from kernels.build import build as build_kernel
    from kernels.build import kind_named

    settings = read_recipe(recipe, overrides, seed, trust=trust)
    source = build_kernel(
        settings.name,
        settings.model_dump(mode="json", exclude_none=True),
        out,
        kind=kind_named(kind, collection, max_minutes),
        gpu=any(map(settings.training_of, settings.all_models)) if gpu is None else gpu,
        dataset_sources=dataset or [],
        kernel_sources=kernel or [],
        title=title,
        beside=recipe_path(recipe).parent,
    )
    show(f"kernel      {out} ({source.stat().st_size} bytes of script)")


@app.command()
@command
def push(folder: Annotated[Path, typer.Argument(help="Folder from `kernel build`.")]) -> None:
    """Upload a kernel to Kaggle, where it starts to run.

    Example: fast-or-slow kernel push runs/kernel
    """
    from kernels.remote import push as send

    kernel = send(folder)
    show(f"pushed      {kernel.kernel_id} version {kernel.version}  {kernel.url}")


@app.command()
@command
def status(
    kernel: KernelName,
    json: options.Json = False,
) -> None:
    """Print the state of the latest run of a kernel.

    Example: fast-or-slow kernel status fast-or-slow-cpu
    """
    from kernels.remote import status as ask

    answer = ask(kernel)
    line = f"{answer.kernel_id}  {answer.state}  {answer.failure_message}".rstrip()
    print_result(answer._asdict(), line, as_json=json)


@app.command()
@command
def output(
    kernel: KernelName,
    out: Annotated[Path, typer.Option(help="New folder for the output of the kernel.")],
    json: options.Json = False,
) -> None:
    """Download the output and the log of a finished kernel.

    The same command resumes.

    Example: fast-or-slow kernel output fast-or-slow-cpu --out runs/kernel-output
    """
    from kernels.remote import fetch_output

    result = fetch_output(kernel, out)
    if result.unfinished:
        say(f"not finished: build it again with --kernel {result.kernel_id} attached, and push")
    whose = f"{result.files} files of {result.kernel_id} version {result.version}"
    print_result(result._asdict(), f"output      {result.folder} ({whose})", as_json=json)


@app.command()
@command
def chain(
    out: Annotated[Path, typer.Option(help="Folder for the state and the output of all kernels.")],
    recipe: options.Recipe = "leaderboard",
    dataset: Datasets = None,
    sessions: Annotated[
        int, typer.Option(min=1, help="Maximum number of kernels that run at the same time.")
    ] = 2,
    max_minutes: Minutes = None,
    overrides: options.Overrides = None,
    trust: options.Trust = None,
    seed: options.FirstSeed = None,
) -> None:
    """Train and rank a recipe on Kaggle, up to the submission.

    It pushes a train kernel for each collection, resumes those that run out of time, ranks in an
    infer kernel, and downloads all outputs. You can stop it at any time, because Kaggle continues
    and the same command resumes.

    Example: fast-or-slow kernel chain --dataset OWNER/fast-or-slow-wheels --out runs/chain
    """
    from common.settings import recipe_path
    from kernels.chain import run_chain

    submission = run_chain(
        read_recipe(recipe, overrides, seed, trust=trust),
        out,
        datasets=dataset or [],
        n_sessions=sessions,
        max_minutes=max_minutes,
        beside=recipe_path(recipe).parent,
    )
    show(f"submission  {submission}")


@app.command()
@command
def wheels(
    out: Annotated[Path, typer.Option(help="New folder for the dataset.")],
    newer: Annotated[
        list[str] | None,
        typer.Option(help="Package that is too old in the image, for example polars. Repeatable."),
    ] = None,
) -> None:
    """Download the Python packages that Kaggle's image lacks.

    It writes a dataset folder with the pinned versions. A kernel installs each wheel that is newer
    than the package of the image.

    Example: fast-or-slow kernel wheels --newer threadpoolctl --out runs/wheels
    """
    from kernels.datasets import write_wheels

    paths = write_wheels(out, newer or [])
    show(f"wheels      {out} ({', '.join(path.name for path in paths)})")


@app.command()
@command
def weights(
    run: Annotated[Path, typer.Option(help="Run folder, model folder, or output of a kernel.")],
    out: Annotated[Path, typer.Option(help="New folder for the dataset.")],
    title: Annotated[str, typer.Option(help="Title of the dataset, 6 to 50 characters.")] = (
        "Fast or slow weights"
    ),
) -> None:
    """Copy trained models into a dataset folder.

    Example: fast-or-slow kernel weights --run runs/mine --out runs/weights
    """
    from kernels.datasets import write_weights

    show(f"weights     {out} ({len(write_weights(run, out, title=title))} models)")


@dataset_app.callback()
def dataset() -> None:
    """Upload the datasets that kernels need.

    Example: fast-or-slow dataset push runs/wheels -m "pinned versions"
    """


@dataset_app.command("push")
@command
def push_dataset(
    folder: Annotated[
        Path, typer.Argument(help="Folder from `kernel wheels` or `kernel weights`.")
    ],
    message: Annotated[str, typer.Option("-m", "--message", help="Message about the new version.")],
) -> None:
    """Create a private dataset, or a new version of it.

    Kernels can attach it as soon as its page shows that it is ready, usually after some minutes.

    Example: fast-or-slow dataset push runs/wheels -m "torch-geometric 2.8.1"
    """
    from kernels.datasets import push_dataset as send

    new = send(folder, message)
    show(f"{new.change:<12}{new.dataset_id}  {new.url}")
