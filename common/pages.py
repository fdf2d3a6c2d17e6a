"""Pages from jinja2 templates: HTML, Markdown and Python.

The script `figures.js.j2` draws charts on pages with plotly.min.js from the package plotly.
"""

import base64
import gzip
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from common.files import write_text

PARTS = Path(__file__).with_name("page_parts")  # any page may import parts.html.j2


class Chart(NamedTuple):
    """One chart of a page. Its kind is a function of FIGURES in figures.js.j2."""

    kind: str
    title: str
    description: str
    data: Any


def bars(values: Mapping[str, float], axis: str) -> dict[str, Any]:
    """Return the data of a chart of the kind "bars". Lists keep the order of the names."""
    return {"names": list(values), "values": list(values.values()), "axis": axis}


@cache
def library() -> str:
    """Return a script with the packed plotly.min.js, or "" if plotly is not installed."""
    plotly = find_spec("plotly")
    if plotly is None or plotly.origin is None:
        return ""
    source = Path(plotly.origin).with_name("package_data") / "plotly.min.js"
    packed = base64.b64encode(gzip.compress(source.read_bytes(), mtime=0)).decode()
    return f'const PLOTLY = "{packed}";\n'


def groups_of(points: Iterable[tuple[str, str, object, float]]) -> dict[str, dict[str, list[Any]]]:
    """Return the points of charts by group: group, name of the point, x and y."""
    groups: dict[str, dict[str, list[Any]]] = {}
    for group, *point in points:
        columns = groups.setdefault(group, {"names": [], "x": [], "y": []})
        for column, value in zip(columns.values(), point, strict=True):
            column.append(value)
    return groups


def write_charts(path: Path, title: str, note: str, charts: Sequence[Chart]) -> None:
    """Write a page of charts, which needs no network."""
    facts = {"title": title, "note": note, "charts": charts, "library": library()}
    write_text(path, render_page(PARTS / "charts.html.j2", **facts))


def render_page(template: Path, **values: object) -> str:
    """Render a page from a template. Values are escaped as HTML unless its name ends in .md.j2.

    A template can use the filters `number`, `percent` and, in Markdown, `table`.
    """
    return _environment(template.parent).get_template(template.name).render(**values)


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, PARTS]),
        autoescape=select_autoescape(disabled_extensions=("md.j2",), default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Keys keep their order, and NaN is refused.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.filters |= {"number": number, "percent": "{:.1%}".format, "table": table}
    return environment


def number(value: float | None) -> str:
    """Format a number with four digits, and None as "–"."""
    return "–" if value is None else f"{value:.4f}".replace("-", "−")


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Format a Markdown table. All columns but the first are aligned right."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([head, "|---|" + "---:|" * (len(header) - 1), *body])
