"""Pictures as text that a page can hold: SVG within the page itself, drawn by matplotlib."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Fixed places: to have matplotlib find them takes five times as long as to draw.
AXES = (0.14, 0.15, 0.73, 0.82)  # left, bottom, width, height as shares of the picture
SIZE_INCHES = (4.4, 3.1)  # as wide as a phone: text stays readable where pictures stand alone
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.color": "#e3e7eb",
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same report gives the same bytes
}


@dataclass(frozen=True)
class Picture:
    """One picture of a page.

    Attributes:
        title: above it.
        told: what it shows, in words, for those who do not see it.
        address: "data:image/svg+xml;base64,…", the picture itself.
    """

    title: str
    told: str
    address: str


def picture(title: str, told: str, draw: "Callable[[Axes], None]") -> Picture:
    """Draw one picture; the same content gives the same bytes."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = new_figure(SIZE_INCHES)
        draw(figure.add_axes(AXES))
        content = io.BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    encoded = base64.b64encode(content.getvalue()).decode()
    return Picture(title, told, f"data:image/svg+xml;base64,{encoded}")


def new_figure(size_inches: tuple[float, float]) -> "Figure":
    """Return an empty figure that no window system knows of; sets no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size_inches)
    FigureCanvasAgg(figure)
    return figure
