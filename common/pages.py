"""Pages from jinja2 templates: HTML, Markdown and Python."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

PARTS = Path(__file__).with_name("page_parts")  # any page may import parts.html.j2


def render_page(template: Path, **values: object) -> str:
    """Return the page that a template makes of some values.

    Args:
        template: The template file. Values are escaped as HTML unless the name ends in .md.j2.
        values: Variables of the template.

    Returns:
        The page. Its filters are `number`, `percent` and, for Markdown, `table`.
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
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # and no other order of keys
    environment.filters |= {"number": number, "percent": "{:.1%}".format, "table": table}
    return environment


def number(value: float | None) -> str:
    """Write a number with four digits, and "–" for none."""
    return "–" if value is None else f"{value:.4f}".replace("-", "−")


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Return a Markdown table with all columns but the first to the right."""
    head, *body = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([head, "|---|" + "---:|" * (len(header) - 1), *body])
