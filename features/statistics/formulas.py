"""The formula of every statistic, by kind and in the order of columns.

`python -m features.statistics.formulas` writes features/statistics/STATISTICS.md from them.
"""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from common.atomic import write_text
from data.graphs.node_columns import RANK_MAX
from features.statistics.layout import OPCODE_GROUPS
from features.statistics.layout_details import LAYOUT_DETAILS, layout_formulas
from features.statistics.program import PROGRAM_STATISTICS
from features.statistics.tile import COUNTED_OPCODES, PARTS
from features.statistics.tile_details import TILE_DETAILS

PAGE = Path(__file__).with_name("STATISTICS.md")

_LAYOUT = {
    **layout_formulas("", "s"),
    "log_padding": "log Σ s · growth, growth that of the output by padding its minor dimension to "
    "128 and its second to 8",
    "copied_bytes_share": "Σ bytes over pairs whose consumer names layouts for its operands, none "
    "of them the producer's, / Σ bytes of all pairs",
    "copied_edges_share": "the same, counting pairs",
    "open_edges_share": "pairs whose consumer names no layout, / all pairs",
    "log_nodes": "log(1 + n)",
    "log_configurable": "log(1 + k)",
    "log_bytes": "log(1 + Σ bytes of all outputs)",
    **{f"share_{group}": f"configurable nodes that are a {group}, / k" for group in OPCODE_GROUPS},
}
_TILE = {
    **{
        f"log_{part}_bounds_{name}": f"log(1 + |the {part}'s {name}|), as the config has it"
        if name in ("sum", "product")
        else f"log(1 + |bound {name} of the {part}|)"
        for part in PARTS
        for name in (*map(str, range(RANK_MAX)), "sum", "product")
    },
    "log_steps": "log Π t over the output's dimensions",
    "log_waste": "log of (Π t · b) / Π d: what the last tiles compute beyond the output",
    "minor_bound_share": "b / d of the minor dimension",
    "log_nodes": "log(1 + n)",
    "log_output_elements": "log(1 + elements of the output)",
    "log_output_bytes": "log(1 + bytes of the output)",
    "log_parameter_bytes": "log(1 + Σ bytes of the parameters)",
    **{f"log_output_dimension_{i}": f"log(1 + d) of dimension {i}" for i in range(RANK_MAX)},
    **{f"log_count_{name}": f"log(1 + nodes that are a {name})" for name in COUNTED_OPCODES},
}
PLAIN_FORMULAS = {"layout": _LAYOUT, "tile": _TILE}
DETAIL_FORMULAS = {"layout": LAYOUT_DETAILS, "tile": TILE_DETAILS}

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
    parts = [_INTRODUCTION]
    for kind, formulas in PLAIN_FORMULAS.items():
        parts += [f"## {kind.capitalize()} configs: plain\n", _table(formulas)]
        parts += [f"## {kind.capitalize()} configs: details\n", _table(DETAIL_FORMULAS[kind])]
    parts += ["## The program or kernel, for both\n", _table(PROGRAM_STATISTICS)]
    return "\n".join(parts)


def _table(formulas: dict[str, str]) -> str:
    """Return a table; neighbours of the same formula share a row."""
    rows = [
        f"| {_names(name for name, _ in part)} | {formula.replace('|', chr(92) + '|')} |"
        for formula, part in groupby(formulas.items(), key=lambda item: item[1])
    ]
    return "\n".join(["| statistic | formula |", "|---|---|", *rows, ""])


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    write_text(PAGE, page())
