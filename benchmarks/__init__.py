"""Accuracy, speed and memory, measured; each program writes its page below docs/results."""

import os
from collections.abc import Iterable, Sequence

from common.settings import ROOT

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch

PAGES = ROOT / "docs" / "results"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, all columns but the first to the right."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return [head, "|---|" + "---:|" * (len(header) - 1), *body]
