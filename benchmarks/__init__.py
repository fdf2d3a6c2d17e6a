"""Measure accuracy, speed and memory. Each program writes a page into docs/results."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import PipelineError, UsageError
from common.files import write_text
from common.pages import render_page
from common.settings import ROOT

# OpenMP reads the policy when torch loads it. The command line sets the same one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

PAGES = ROOT / "docs" / "results"


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """End the program with one line for an error, like the command line."""
    try:
        yield
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except KeyboardInterrupt:
        print("error: interrupted; the same command resumes", file=sys.stderr)  # noqa: T201
        sys.exit(130)


def write_page(path: Path, text: str) -> None:
    """Write a page of results, and print its path."""
    write_text(path, text.rstrip("\n") + "\n")
    print(path)  # noqa: T201


def render(name: str, **values: object) -> str:
    """Render a page from the template pages/NAME.md.j2."""
    return render_page(Path(__file__).parent / "pages" / f"{name}.md.j2", **values)
