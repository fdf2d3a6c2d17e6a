"""What all commands share: one-line errors, exit codes, tables, progress bars, common options."""

import atexit
import functools
import inspect
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import heard_by, teller_or, time_limit, watched_by

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

P = ParamSpec("P")
Rows = Sequence[Sequence[object]]

_DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show a traceback where something fails.")
]
DEBUG = inspect.Parameter(
    "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_DebugOption
)
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="First of the seeds.")]

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Folder that holds npz/. Default: PIPELINE_DATA, Kaggle's mount, what `fetch` wrote, "
        "the sample.",
    ),
]
StoreDir = Annotated[
    Path | None,
    typer.Option(
        "--store", help="Folder of packed graphs. Default: one below PIPELINE_STORE or data/store."
    ),
]
Collections = Annotated[
    str | None, typer.Option(help="Such as tile,layout:xla or layout:nlp:random. Default: all.")
]
Splits = Annotated[str | None, typer.Option(help="Such as valid,test. Default: all.")]
RecipeName = Annotated[
    str, typer.Option("--recipe", help="Name of a recipe in configs/, or a .toml file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key; may be repeated."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was begun there.")]

MaxMinutes = Annotated[
    float | None, typer.Option(min=0, help="Stop after so many minutes; it can be gone on with.")
]

WorkerCount = Annotated[
    int | None, typer.Option("--workers", min=1, help="Jobs at once. Default: all cores and GPUs.")
]
LogTo = Annotated[
    list[str] | None,
    typer.Option(
        "--log-to", metavar="TRACKER", help="tensorboard, wandb or mlflow; may be repeated."
    ),
]
RayAddress = Annotated[
    str | None, typer.Option("--ray", metavar="ADDRESS", help='Of a Ray cluster, or "local".')
]

EXIT_FAULT, EXIT_USAGE = 1, 2
TOLD_EVERY_S = 60.0  # how far work is, where no bar can be drawn
PROGRESS_AFTER_S = 2.0
STAGE_PREFIX = "stage: "


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Turn what a command raises into one line on standard error and an exit code.

    0 done, 1 the input or the world is at fault, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM. It gets an
    option `--debug`, which shows the traceback.
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        debug = bool(kwargs.pop("debug", False))
        fail = functools.partial(_fail, debug=debug)
        begun, stops = list[str](), list[int]()
        max_minutes: Any = kwargs.get("max_minutes")
        try:
            told = _told_here(begun, debug=debug)
            with _terminated_by_sigterm(stops), told, time_limit(max_minutes):
                function(*args, **kwargs)
        except OutOfTime as stop:
            say(f"{stop}, as --max-minutes asks; --resume goes on")
        except (PipelineError, KeyboardInterrupt) as error:
            # Once more Ctrl-C, and what ends with the process would say so.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
            how, code = str(error), EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAULT
            if stops or isinstance(error, KeyboardInterrupt):  # a library may turn one into another
                how, code = ("terminated", 143) if stops else ("interrupted", 130)
                goes_on = "; the same command with --resume goes on" if "resume" in kwargs else ""
                how += f"; what was finished is kept{goes_on}" if begun else ""
            fail(how, code)
        except MemoryError:
            fail("out of memory; a smaller recipe or fewer threads may fit", EXIT_FAULT)
        except BrokenPipeError:  # the reader, such as `head`, has all it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            fail(f"{place}{error.strerror or error}", EXIT_FAULT)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:  # a defect of ours: still one line, and how to see more
            line = " ".join(f"{type(error).__name__}: {error}".split())
            fail(f"internal error: {line}; --debug shows where", EXIT_FAULT)

    own = inspect.signature(function)
    options = own.replace(parameters=[*own.parameters.values(), DEBUG])
    vars(guarded)["__signature__"] = options  # what typer reads
    return guarded


@contextmanager
def _told_here(begun: list[str], *, debug: bool) -> Iterator[None]:
    bars = _Bars() if sys.stderr.isatty() else None
    told_s = time.monotonic()

    def watch(what: str, done: int, total: int) -> None:
        nonlocal told_s
        if done == 0:
            begun.append(what)
        if bars:
            bars.update(what, done, total)
        elif done == 0 or time.monotonic() - told_s > TOLD_EVERY_S:
            told_s = time.monotonic()
            say(f"{STAGE_PREFIX}{what}" + f": {done} of {total}" * (done > 0))

    try:
        with watched_by(watch), heard_by(say, logging.DEBUG if debug else logging.INFO):
            yield
    finally:
        if bars:
            bars.stop()


@contextmanager
def _terminated_by_sigterm(stops: list[int]) -> Iterator[None]:
    """Stop work on SIGTERM as Ctrl-C does, and note it."""

    def stop(number: int, frame: object) -> None:
        stops.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _fail(line: str, code: int, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    say(f"error: {line}")
    raise typer.Exit(code)


def data_dir(given: Path | None) -> Path:
    from common.settings import SAMPLE, default_data_dir

    folder = given or default_data_dir()
    if given is None and folder == SAMPLE:
        say(f"no --data, and no dataset was found: the embedded sample is used, {SAMPLE}")
    return folder


def say(line: str) -> None:
    """Print a remark to standard error, so that standard output holds results alone.

    Where nobody reads it any more, as after `2>&1 | head -1`, the work goes on in silence.
    """
    try:
        typer.echo(line, err=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def tell_errors(errors: Sequence[str]) -> None:
    """Print a line for each error, and exit with 1 if there is one."""
    for error in errors:
        say(f"error: {error}")
    if errors:
        raise typer.Exit(EXIT_FAULT)


def say_that_libraries_load() -> None:
    """Print why nothing happens for some seconds, before a command imports what takes them."""
    say(f"{STAGE_PREFIX}load the libraries")


def print_json(value: object) -> None:
    """Print strict JSON, paths as texts."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False, default=os.fspath))


def print_result(facts: object, *lines: str, as_json: bool) -> None:
    """Print facts as JSON, or else what lines say of them."""
    if as_json:
        print_json(facts)
    for line in () if as_json else lines:
        typer.echo(line)


def print_rows(
    names: Sequence[str], rows: Rows, *, if_known: Sequence[str] = (), as_json: bool
) -> None:
    """Print rows as JSON, each by the names, or else as `print_table` does."""
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows, if_known=if_known)


def print_table(header: Sequence[str], rows: Rows, *, if_known: Sequence[str] = ()) -> None:
    """Print aligned columns; numbers to the right, None as a dash.

    Args:
        if_known: columns that are left out where every row has None.
    """
    shown = [
        i
        for i, name in enumerate(header)
        if name not in if_known or any(row[i] is not None for row in rows)
    ]
    header, rows = [header[i] for i in shown], [[row[i] for i in shown] for row in rows]
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [
        all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(header))
    ]
    for line in (header, *cells):
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        typer.echo("  ".join(parts).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


class _Bars:
    """A bar for each stage, or job of a worker, that has lasted for two seconds."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._told: dict[str, tuple[str, int, int]] = {}  # by who tells
        self._began_s: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}

    def stop(self) -> None:
        if self._bars:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()

    def update(self, what: str, done: int, total: int) -> None:
        teller, now = teller_or(what), time.monotonic()
        self._told[teller] = what, done, total
        self._began_s.setdefault(teller, now)
        for other, began_s in self._began_s.items():
            if now - began_s >= PROGRESS_AFTER_S and (other == teller or other not in self._tasks):
                self._draw(other)
        if what == teller and done >= total:
            del self._began_s[teller]
            if teller in self._tasks:
                self._drawn().remove_task(self._tasks.pop(teller))
            if not self._tasks:
                self.stop()

    def _draw(self, teller: str) -> None:
        bars, (what, done, total) = self._drawn(), self._told[teller]
        if teller not in self._tasks:
            self._tasks[teller] = bars.add_task(teller, total=total)
        number = self._tasks[teller]
        task = next(task for task in bars.tasks if task.id == number)
        if done < task.completed or total != task.total:  # its next step
            bars.reset(number, total=total)
        name = what if what.startswith(teller) else teller
        bars.update(number, description=name, completed=done)

    def _drawn(self) -> "Progress":
        if self._bars is None:
            from rich import progress
            from rich.console import Console
            from rich.table import Column

            what = Column(ratio=1, no_wrap=True, overflow="ellipsis")
            self._bars = progress.Progress(
                progress.TextColumn("{task.description}", markup=False, table_column=what),
                progress.BarColumn(bar_width=24),
                progress.TaskProgressColumn(),
                progress.TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,
                expand=True,
                speed_estimate_period=3600,
            )
            self._bars.start()
        return self._bars
