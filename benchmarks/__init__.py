"""Accuracy, speed and memory, measured; each program writes its page below docs/results."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.atomic import write_text
from common.errors import PipelineError
from common.settings import ROOT

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch

PAGES = ROOT / "docs" / "results"


def entry_point(main: Callable[[Sequence[str] | None], int]) -> Callable[..., int]:
    """Let a program that fails end with one line on standard error, and with 1.

    Args:
        main: takes the words of the command line, None for the process's own.
    """

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        try:
            return main(arguments)
        except PipelineError as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201
            return 1

    return run


def write_page(path: Path, text: str) -> None:
    """Write a page of results, whole or not at all, and say where it is."""
    write_text(path, text.rstrip("\n") + "\n")
    print(path)  # noqa: T201


def render(name: str, **values: object) -> str:
    """Return the page that the template pages/NAME.md.j2 makes of the values."""
    environment = Environment(  # noqa: S701  it is Markdown
        loader=FileSystemLoader(Path(__file__).parent / "pages"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["table"] = lambda rows, header: "\n".join(table(header, rows))
    return environment.get_template(f"{name}.md.j2").render(values)


def section(name: str, **values: object) -> list[str]:
    """Return a section of speed.md, by its template, as lines."""
    return render(name, **values).splitlines()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, all columns but the first to the right."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return [head, "|---|" + "---:|" * (len(header) - 1), *body]
