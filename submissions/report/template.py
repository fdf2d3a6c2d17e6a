"""Fill a template of submissions/templates: HTML that is escaped, and no name left undefined."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent


def render_page(template: str, **values: object) -> str:
    """Return the page that the template makes of the values, such as "tune.html.j2"."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)
