"""The pages in a real browser: every chart is drawn, tables sort, nothing is wider than a phone."""

from pathlib import Path

import pytest

from submissions.report.page import write_graph_pages, write_report_page
from tests.submissions.pages import illustrated_report
from tests.support.browser import needs_browser, used

pytestmark = pytest.mark.slow


@needs_browser
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_are_drawn_sorted_searched_and_fit_the_window(width: int, tmp_path: Path) -> None:
    report, ranks = illustrated_report(20)
    write_report_page(report, tmp_path / "report.html", ranks)
    state = used(tmp_path / "report.html", width)
    assert state["plots"] == 1 + 1 and state["focused"] and state["found"] == ["graph-07"]
    direction, values = state["sorted"]
    numbers = [float(text.replace("−", "-").replace("–", "-inf")) for text in values]
    assert (direction, numbers) == ("descending", sorted(numbers, reverse=True))
    write_graph_pages(tmp_path, report, ranks)
    page = tmp_path / "graphs" / "layout-xla-default-graph-07.html"
    assert used(page, width)["plots"] == 1
