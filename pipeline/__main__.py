"""The command line: `fast-or-slow COMMAND …`, or `python -m pipeline COMMAND …`.

The commands are in pipeline/cli/.
"""

import atexit
import os
import signal
import sys
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

# The working folder may have other modules named `models` or `data`, so the project comes first.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common.signals import end_at_once, handle, handled_by

HOW_TO_INSTALL = "run `make setup`, then .venv/bin/python -m pipeline"
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
# The GPU memory of a training step changes with its graph. Expandable segments leave no gaps. The
# variable is read when torch starts CUDA.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

# The module in pipeline/cli/ of each command, and of each app of several commands.
PLACES = {
    **{"run": "run", "plan": "plan"},
    **dict.fromkeys(("synthesize", "fetch", "audit", "prepare", "featurize", "statistics"), "data"),
    "collect": "programs",
    **dict.fromkeys(("train", "predict"), "run"),
    **{"blend": "blend", "tune": "tune", "score": "submission"},
    **dict.fromkeys(("rank", "suggest"), "rank"),
    "optimize": "programs",
    **dict.fromkeys(("report", "runs", "compare"), "reports"),
    **{"submission": "submission:app", "kernel": "kernel:app", "dataset": "kernel:dataset_app"},
}


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
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _commands() -> None:
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
