"""Accuracy, speed and memory, measured; each program writes its page below docs/results."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from common.atomic import write_text
from common.settings import ROOT

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch

PAGES = ROOT / "docs" / "results"


def write_page(path: Path, lines: Iterable[str]) -> None:
    """Write a page of results, whole or not at all, and say where it is."""
    write_text(path, "\n".join(lines) + "\n")
    print(path)  # noqa: T201


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, all columns but the first to the right."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return [head, "|---|" + "---:|" * (len(header) - 1), *body]
