"""Fill a page template: HTML that is escaped, and no name left undefined."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render_page(template: Path, **values: object) -> str:
    """Return the page that the template file makes of the values."""
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**values)
