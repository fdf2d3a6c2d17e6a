"""The command line: `fast-or-slow COMMAND …`, or `python -m pipeline COMMAND …`.

The commands are in pipeline/cli/.
"""

import atexit
import os
import re
import signal
import sys
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

# Modules of users are in the working folder. It may have others named `models` or `data`, so the
# project comes first.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append("")

from common.errors import did_you_mean, escaped
from common.signals import end_at_once, handle, handled_by

HOW_TO_INSTALL = "run `make setup`, then .venv/bin/python -m pipeline"
FOLDER = Path(__file__).resolve().parents[1]
# In a wheel, the folder is a package.
if FOLDER.joinpath("__init__.py").is_file():
    PINNED = f"-r {FOLDER / 'requirements.txt'} -c {FOLDER / 'constraints.txt'}"
    HOW_TO_INSTALL = f"{sys.executable} -m pip install {PINNED}"
# The imports take half a second.
with handled_by(end_at_once):
    # A file that is opened later must not get the number of a closed stream (`2>&-`).
    for number, stream in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, stream) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, stream, os.fdopen(number, "w" if number else "r", closefd=False))
    try:
        import typer
        from typer.core import TyperGroup
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; {HOW_TO_INSTALL}")

# A file name or a message of a server may have characters that the terminal's encoding lacks.
if isinstance(sys.stdout, TextIOWrapper):
    sys.stdout.reconfigure(errors="backslashreplace")
# OpenMP's threads spin while they wait, by default. On shared cores this takes time from other
# work. The variable is read when a command imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Linux zeroes the memory of large tensors in pages of 2 MiB. Pages of 4 KiB take a fifth of a
# training step. torch reads the variable at its first tensor.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
# The GPU memory of a training step changes with its graph. Expandable segments leave no gaps. The
# variable is read when torch starts CUDA.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

# The module in pipeline/cli/ of each command, and of each app of several commands, by group.
GROUPS: dict[str, dict[str, str]] = {
    "Compete": {
        **{"run": "run", "plan": "plan", "score": "submission", "submission": "submission:app"},
        **dict.fromkeys(("report", "runs", "compare"), "reports"),
    },
    "Data": dict.fromkeys(("fetch", "audit", "prepare", "statistics", "synthesize"), "data"),
    "Models": {"train": "run", "predict": "run", "blend": "blend", "tune": "tune"},
    "Programs": {
        **{"featurize": "data", "rank": "rank", "suggest": "rank"},
        **dict.fromkeys(("collect", "optimize"), "programs"),
    },
    "Kaggle": {"kernel": "kernel:app", "dataset": "kernel:dataset_app"},
}
PLACES = {name: place for group in GROUPS.values() for name, place in group.items()}
VARIABLES = {
    "PIPELINE_DATA": "Data folder, if --data is missing.",
    "PIPELINE_STORE": "Folder of packed graphs, if --store is missing.",
    "XDG_CACHE_HOME": "Place of stores and downloads outside of a checkout. Default: ~/.cache.",
    "TPUGRAPHS_BASE_URL": "Mirror that `fetch` downloads from.",
    "KAGGLE_API_TOKEN": "Token of Kaggle. Default: the files in KAGGLE_CONFIG_DIR or ~/.kaggle.",
}
# Parts of a message about a wrong option: typer quotes pydantic.
WRONG_CHOICE = re.compile("Value error, '(.*)' is not (one of .*)")
WRONG_NUMBER = re.compile("Input should be .*")
SUGGESTION = re.compile(r"(?:\. Did you mean| \(Possible options:) (.*)[?)]$")
NUMBERS: Any = {int: "a whole number", list[int]: "a whole number", float: "a number"}


class Commands(TyperGroup):
    """The commands. A call of a command imports only the module of this command."""

    @property
    def commands(self) -> dict[str, Any]:
        return {name: _load(name) for name in PLACES}

    @commands.setter
    def commands(self, _: object) -> None:
        pass

    def list_commands(self, ctx: object) -> list[str]:
        return list(PLACES)

    def get_command(self, ctx: object, name: str) -> Any:
        return _load(name) if name in PLACES else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands by group, and the environment variables."""
        width = max(map(len, VARIABLES))
        rows = {name: _load(name).get_short_help_str(limit=100) for name in PLACES}
        parts = {title: {name: rows[name] for name in group} for title, group in GROUPS.items()}
        for title, part in {**parts, "Environment variables": VARIABLES}.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in part.items()])

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command. Wrong usage is one line on standard error."""
        try:
            sys.exit(super().main(*args, **{**extra, "standalone_mode": False}))
        except Exception as caught:
            # typer gives its errors no public type. One of them has the help as its text.
            error: Any = caught
            if not hasattr(error, "format_message"):
                raise
            text = error.format_message()
            if not text.startswith("Usage:"):
                text = _plain(" ".join(text.split()).rstrip("."), getattr(error, "param", None))
                name = error.ctx.command_path if error.ctx else "fast-or-slow"
                how = f"`{name} --help` lists the options"
                text = escaped(f"error: {text[:1].lower()}{text[1:]}; {how}")
            typer.echo(text, err=True)
            sys.exit(error.exit_code)


def _plain(text: str, option: Any) -> str:
    """Say what a wrong option of typer should be, and which choice is spelled most like it."""
    if end := SUGGESTION.search(text):
        names = end[1].replace("'", "").replace(", ", " or ")
        return f"{text[: end.start()]}; did you mean {names}?"
    if wrong := WRONG_CHOICE.search(text):
        near = did_you_mean(wrong[1], re.findall("'([^']*)'", wrong[2]))
        return WRONG_CHOICE.sub(lambda _: f"expected {wrong[2]}{near}", text)
    kind = NUMBERS.get(option.type_descriptor.annotation) if WRONG_NUMBER.search(text) else None
    limits = {"at least": getattr(option, "min", None), "at most": getattr(option, "max", None)}
    bounds = " and ".join(f"{side} {limit}" for side, limit in limits.items() if limit is not None)
    return WRONG_NUMBER.sub(f"expected {kind}{bounds and f', {bounds}'}", text) if kind else text


@cache
def _load(name: str) -> Any:
    module, _, attribute = PLACES[name].partition(":")
    try:
        part = getattr(import_module(f"pipeline.cli.{module}"), attribute or name)
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error}; {HOW_TO_INSTALL}")
    parent = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(part, typer.Typer):
        parent.add_typer(part, name=name)
        return typer.main.get_group(parent).commands[name]
    parent.command(name)(part)
    return typer.main.get_command(parent)


app = typer.Typer(
    cls=Commands,
    help="Rank XLA compiler configs from fastest to slowest: TpuGraphs, end to end.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # A shell completes the words of one command, and `python -m pipeline` is three words.
    add_completion=__name__ != "__main__",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from common.reproducibility import revision, version

        typer.echo(f"fast-or-slow {version()}, revision {revision() or 'unknown'}")
        raise typer.Exit


VERSION = typer.Option(
    "--version", is_eager=True, callback=_print_version, help="Print the version and the revision."
)


@app.callback()
def _commands(_: Annotated[bool, VERSION] = False) -> None:
    """Do nothing: without a callback, typer makes no group of an app without commands."""


def main(name: str = "fast-or-slow") -> None:
    """Run a command of the command line, under this name in messages and help."""
    # The handlers stay until the process ends.
    handle(end_at_once)
    # Python resets its own handlers at its end, and a signal would then end a finished command.
    atexit.register(handle, signal.SIG_IGN)
    app(prog_name=name)


if __name__ == "__main__":
    main("python -m pipeline")
