"""What all commands share: one-line errors, exit codes, tables, progress bars, common options."""

import functools
import inspect
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, cast

import typer

from common.errors import OutOfTime, PipelineError, UsageError, escaped, hide_credentials
from common.files import check_writable
from common.progress import end_now, log_lines_to, reporter_name, time_limit, watched_by
from common.signals import LINES, Stopped, end_quietly, handled_by

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from data.tree import Collection
    from models.config.recipe import Recipe

P = ParamSpec("P")
Rows = Sequence[Sequence[object]]

_DebugOption = Annotated[bool, typer.Option("--debug", help="Print a traceback after an error.")]
DEBUG = inspect.Parameter(
    "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_DebugOption
)
EXIT_FAULT, EXIT_USAGE = 1, 2
# Interval of lines with the progress, without a terminal for a bar.
TOLD_EVERY_S = 60.0
PROGRESS_AFTER_S = 2.0
STAGE_PREFIX = "stage: "
# The imports of a command take some seconds.
LOADING = f"{STAGE_PREFIX}load the libraries"


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Turn each error of a command into one line and an exit code, and add the option --debug."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        debug = bool(kwargs.pop("debug", False))
        max_minutes = kwargs.get("max_minutes", kwargs.get("minutes"))
        limit, stops = time_limit(cast(float | None, max_minutes)), list[int]()
        try:
            with _report_progress(debug=debug), limit, _stopped_by_signals(stops):
                function(*args, **kwargs)
        except BrokenPipeError:  # the reader, such as `head`, has all it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            how = " with --resume" if kwargs.get("resume") is False else ""
            if isinstance(error, OutOfTime) and not stops:
                say(f"{error}; stopped by --max-minutes; the same command{how} resumes")
                return
            if stops or isinstance(error, KeyboardInterrupt):  # a library may turn one into another
                number = signal.Signals((stops or [signal.SIGINT])[0])
                line, code = LINES[number], 128 + number
                if {"resume", "max_minutes", "minutes"} & kwargs.keys():
                    line += f"; the same command{how} resumes"
            else:
                line, code = _fault(error)
            if debug:
                for part in traceback.format_exc().splitlines():
                    say(part)
            end_quietly(line)
            say(f"error: {line}")
            raise typer.Exit(code) from error

    signature = inspect.signature(function)
    parameters = [*signature.parameters.values(), DEBUG]
    # Typer reads this attribute.
    vars(wrapper)["__signature__"] = signature.replace(parameters=parameters)
    return wrapper


def _fault(error: Exception) -> tuple[str, int]:
    if isinstance(error, PipelineError):
        return str(error), EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAULT
    if isinstance(error, MemoryError):
        return "out of memory; a smaller recipe or fewer threads may fit", EXIT_FAULT
    if isinstance(error, OSError):
        # Results are printed by `echo`, and its errors name no file.
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        is_output = frame.f_code.co_name == typer.echo.__name__
        name = error.filename or ("standard output" if is_output else "")
        place = f"{name}: " if name else ""
        return f"{place}{error.strerror or error}", EXIT_FAULT
    line = " ".join(f"{type(error).__name__}: {error}".split())
    # A defect of ours: still one line, and how to see more.
    return f"internal error: {line}; --debug shows where", EXIT_FAULT


@contextmanager
def _report_progress(*, debug: bool) -> Iterator[None]:
    bars = _Bars() if sys.stderr.isatty() else None
    told_s = time.monotonic()

    def watch(name: str, n_done: int, total: int) -> None:
        nonlocal told_s
        if bars:
            bars.update(name, n_done, total)
        elif n_done == 0 or time.monotonic() - told_s > TOLD_EVERY_S:
            told_s = time.monotonic()
            say(f"{STAGE_PREFIX}{name}" + f": {n_done} of {total}" * (n_done > 0))

    try:
        with watched_by(watch), log_lines_to(say, logging.DEBUG if debug else logging.INFO):
            yield
    finally:
        if bars:
            bars.stop()


@contextmanager
def _stopped_by_signals(stops: list[int]) -> Iterator[None]:
    """Stop work on SIGTERM as on Ctrl-C. Its time ends too: a library may swallow the exception."""

    def stop(number: int, frame: object) -> None:
        stops.append(number)
        end_now()
        raise Stopped

    with handled_by(stop):
        yield


def read_recipe(
    name: str,
    overrides: Sequence[str] | None,
    seed: int | None = None,
    collections: Iterable["Collection"] = (),
    *,
    trust: Sequence[str] | None,
) -> "Recipe":
    """Read a recipe, and refuse keys that have no effect on the collections (none = all)."""
    from common.settings import apply_overrides
    from data.tree import COLLECTIONS
    from models.config.recipe import load_recipe
    from models.run_folder import flat

    recipe = load_recipe(name, overrides or [], seed=seed, trust=trust or [])
    places = [*collections] or COLLECTIONS
    kinds = [*dict.fromkeys(collection.kind for collection in places)]
    for key, _ in flat(apply_overrides({}, overrides or [])):
        if recipe.is_idle(key, places):
            models = ", ".join(model for kind in kinds for model in recipe.models_of(kind))
            subject = f"{kinds[0]}s " if len(kinds) == 1 else ""
            reason = f"has no effect: recipe {recipe.name} ranks {subject}by {models}"
            raise UsageError(f"--set {key}: {reason}")
    return recipe


def data_dir(option: Path | None) -> Path:
    """Return the data folder of an option, or else the default one, if it has a tree of files."""
    from common.settings import SAMPLE, default_data_dir
    from data.tree import npz_root

    folder = option or default_data_dir()
    npz_root(folder)
    if option is None and folder == SAMPLE:
        say(f"no --data, and no dataset was found: the embedded sample is used, {SAMPLE}")
    return folder


def say(line: str) -> None:
    """Print a remark to standard error, so that standard output has only results.

    If it cannot be written, for example after `2>&1 | head -1`, the remark is dropped.
    """
    try:
        typer.echo(escaped(hide_credentials(line)), err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def show(*lines: str) -> None:
    """Print lines of a result, without the terminal escapes of names in files of others."""
    for line in lines:
        typer.echo(escaped(line))


def check_output(option: str, path: Path | None, ending: str = "") -> None:
    """Refuse a file to write, if one is asked for, with another ending or in a wrong place."""
    if path and not path.name.endswith(ending):
        raise UsageError(f"{option} {path}: expected a name that ends in {ending}")
    if path:
        check_writable(path)


def tell_errors(errors: Sequence[str]) -> None:
    """Print a line for each error, and exit with 1 if there is one."""
    for error in errors:
        say(f"error: {error}")
    if errors:
        raise typer.Exit(EXIT_FAULT)


def print_json(value: object) -> None:
    """Print strict JSON, paths as texts."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False, default=os.fspath))


def print_result(facts: object, *lines: str, as_json: bool) -> None:
    """Print facts as JSON, or else lines with the same content."""
    if as_json:
        print_json(facts)
    else:
        show(*lines)


def print_rows(
    names: Sequence[str], rows: Rows, *, if_known: Sequence[str] = (), as_json: bool
) -> None:
    """Print rows as JSON, each by the names, or else as `print_table` does."""
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        print_table(names, rows, if_known=if_known)


def print_table(header: Sequence[str], rows: Rows, *, if_known: Sequence[str] = ()) -> None:
    """Print aligned columns, None as a dash. `if_known` columns need one value that is known."""
    columns = [
        i
        for i, name in enumerate(header)
        if name not in if_known or any(row[i] is not None for row in rows)
    ]
    header, rows = [header[i] for i in columns], [[row[i] for i in columns] for row in rows]
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
        show("  ".join(parts).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else escaped(str(value))


class _Bars:
    """A bar for each stage, or job of a worker, that has lasted for two seconds."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        # The bar and the start of each stage or job.
        self._stages: dict[str, tuple[TaskID, float]] = {}

    def stop(self) -> None:
        if self._bars:
            self._bars.stop()
        self._bars = None
        self._stages.clear()

    def update(self, text: str, n_done: int, total: int) -> None:
        text = escaped(text)
        name, now = reporter_name(text), time.monotonic()
        bars = self._bars = self._bars or _no_bars()
        if name not in self._stages:
            self._stages[name] = bars.add_task(name, total=total, visible=False), now
        number, _ = self._stages[name]
        # A job begins its next step.
        if n_done == 0:
            bars.reset(number, total=total)
        bars.update(number, description=text if text.startswith(name) else name, completed=n_done)
        for bar, began_s in self._stages.values():
            if now - began_s >= PROGRESS_AFTER_S:
                bars.update(bar, visible=True)
                bars.start()
        if text == name and n_done >= total:
            bars.remove_task(number)
            del self._stages[name]
            if not self._stages:
                self.stop()


def _no_bars() -> "Progress":
    from rich import progress
    from rich.console import Console
    from rich.table import Column

    description = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False, table_column=description),
        progress.BarColumn(bar_width=24),
        progress.TaskProgressColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        expand=True,
        speed_estimate_period=3600,
    )
