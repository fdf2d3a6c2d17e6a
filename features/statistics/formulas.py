"""The formula of every statistic, by kind and in the order of columns.

`python -m features.statistics.formulas` writes features/statistics/STATISTICS.md from them.
"""

from itertools import groupby
from pathlib import Path

from common.atomic import write_text
from features.statistics.layout import LAYOUT_STATISTICS
from features.statistics.layout_details import LAYOUT_DETAILS
from features.statistics.program import PROGRAM_STATISTICS
from features.statistics.tile import TILE_DETAILS, TILE_STATISTICS

PAGE = Path(__file__).with_name("STATISTICS.md")

_INTRODUCTION = """\
# Statistics of configs

Written by `python -m features.statistics.formulas`; a test compares this page with the code, and
every statistic with a slow loop over nodes.

Trees and linear rankers read one row of these per config (`statistics = "all"` of their recipe
table; `"plain"` reads the first part alone, which is what networks read as well).
`python -m pipeline statistics` writes them as parquet.

n nodes, k configurable ones, e edges. s: a configurable node's share of the bytes that all k put
out. A layout is compared by its two minor dimensions, which decide how a tensor is cut into the
TPU's 8 × 128 tiles. Pairs: a configurable consumer, and a configurable producer whose output
reaches it with its shape unchanged. Tiles: d a dimension of the output, b its bound (d where there
is none), t = ⌈d / b⌉, steps = Π t.
"""


def page() -> str:
    """Return the page."""
    parts = {
        "Layout configs: plain": LAYOUT_STATISTICS,
        "Layout configs: details": LAYOUT_DETAILS,
        "Tile configs: plain": TILE_STATISTICS,
        "Tile configs: details": TILE_DETAILS,
        "The program or kernel, for both": PROGRAM_STATISTICS,
    }
    tables = [text for title, own in parts.items() for text in (f"## {title}\n", _table(own))]
    return "\n".join([_INTRODUCTION, *tables])


def _table(formulas: dict[str, str]) -> str:
    rows = [
        f"| {', '.join(f'`{name}`' for name, _ in part)} | {formula.replace('|', chr(92) + '|')} |"
        for formula, part in groupby(formulas.items(), key=lambda item: item[1])
    ]
    return "\n".join(["| statistic | formula |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    write_text(PAGE, page())
