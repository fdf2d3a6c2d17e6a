"""Pages from jinja2 templates: HTML, Markdown and Python."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

PARTS = Path(__file__).with_name("page_parts")  # any page may import parts.html.j2


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
