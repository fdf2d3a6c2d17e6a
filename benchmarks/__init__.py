"""Measure accuracy, speed and memory. Each program writes a page into docs/results."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import PipelineError, UsageError
from common.files import write_text
from common.pages import render_page
from common.reproducibility import revision
from common.settings import ROOT

# OpenMP and torch read them when torch loads. The command line sets the same values.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# The code that decides the numbers of each page.
_RANKING = ("configs", "data/graphs", "data/sample", "ensembles", "features", "models")
_ACCURACY = ("benchmarks/accuracy", "common/metrics.py", *_RANKING)
_GO = ("autotune/measure", "autotune/programs", "benchmarks/go.py", "benchmarks/go_policy.py")
_GST = ("benchmarks/segments.py", "data/large", "models/layout", "models/segments")
CODE = {
    "accuracy": _ACCURACY,
    "claims": ("benchmarks/claims.py", "benchmarks/pages/claims.toml", *_ACCURACY, *_GO, *_GST),
    "go": _GO,
    "gpu": ("benchmarks/gpu.py", "models/layout", "models/training"),
    "kernels": ("benchmarks/kernels.py", "models/layout"),
    "optimize": ("autotune", "benchmarks/autotune"),
    "rehearsal": ("benchmarks/rehearsal.py", "configs", "kernels", "models", "pipeline/planning"),
    "segments": _GST,
    "speed": ("benchmarks/plain_pyg.py", "benchmarks/speed.py", "data", "models/layout"),
    "suggest": ("benchmarks/suggest.py", "ensembles/picks.py", "ensembles/ranking", "models/trees"),
}
PAGES, TEMPLATES = ROOT / "docs" / "results", Path(__file__).with_name("pages")


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


def resumable_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options --out and --report."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, required=True, help="folder of results; resumes")
    parser.add_argument("--report", type=Path, default=PAGES, help="folder of the page")
    return parser


def write_page(name: str, folder: Path, **facts: object) -> None:
    """Render the template pages/NAME.md.j2 into FOLDER/NAME.md, and print the path.

    The last line names the code that decides the numbers, for `benchmarks.results`.
    """
    path = folder / f"{name}.md"
    text = render_page(TEMPLATES / f"{name}.md.j2", revision=revision(), **facts)
    code = ", ".join(f"`{path}`" for path in CODE[name])
    write_text(path, f"{text.rstrip()}\n\nCode that decides the numbers: {code}.\n")
    print(path)  # noqa: T201


def interval_text(value: float, low: float, high: float, form: str = ".2f") -> str:
    """Format a number and its interval, for example "0.50 [0.40, 0.60]"."""
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"
