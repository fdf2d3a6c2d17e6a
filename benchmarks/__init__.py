"""Accuracy, speed and memory, measured; each program writes its page below docs/results."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import PipelineError, UsageError
from common.files import write_text
from common.pages import render_page
from common.settings import ROOT

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch

PAGES = ROOT / "docs" / "results"


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the program with the line of what was wrong, as the command line does."""
    try:
        yield
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        told = "the same command goes on, and begins anew what was not whole"
        print(f"error: interrupted; {told}", file=sys.stderr)  # noqa: T201
        sys.exit(130)


def write_page(path: Path, text: str) -> None:
    """Write a page of results, whole or not at all, and say where it is."""
    write_text(path, text.rstrip("\n") + "\n")
    print(path)  # noqa: T201


def render(name: str, **values: object) -> str:
    """Return the page that the template pages/NAME.md.j2 makes of the values."""
    return render_page(Path(__file__).parent / "pages" / f"{name}.md.j2", **values)
