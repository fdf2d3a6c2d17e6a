"""Pages from templates: escaped, the same for the same values."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render_page(template: Path, **values: object) -> str:
    """Return the page that the template file makes of the values; filters: number, percent."""
    return _environment(template.parent).get_template(template.name).render(**values)


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),  # parts.html.j2 is for all pages
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}  # and no other order of keys
    environment.filters |= {"number": number, "percent": "{:.1%}".format}
    return environment


def number(value: float | None) -> str:
    """Write a number with four digits; "–" where there is none."""
    return "–" if value is None else f"{value:.4f}".replace("-", "−")
