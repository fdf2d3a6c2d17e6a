"""The pages in a real browser: every chart is drawn, tables sort, nothing is wider than a phone."""

from pathlib import Path
from typing import Any

import pytest

from submissions.report.page import (
    write_graph_pages,
    write_report_page,
)
from tests.submissions.pages import illustrated_report
from tests.support.browser import needs_browser, used

pytestmark = pytest.mark.slow


def check_table(told: dict[str, Any]) -> None:
    assert told["focused"]
    direction, values = told["sorted"]
    assert direction == "descending"
    numbers = [float(text.replace("−", "-").replace("–", "-inf")) for text in values]
    assert numbers == sorted(numbers, reverse=True)
    assert told["found"] == ["graph-07"]


@needs_browser
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_are_drawn_sorted_searched_and_fit_the_window(width: int, tmp_path: Path) -> None:
    report, ranks = illustrated_report(20)
    write_report_page(report, tmp_path / "report.html", ranks)
    told = used(tmp_path / "report.html", width)
    assert told["plots"] == 1 + 1
    check_table(told)

    write_graph_pages(tmp_path, report, ranks)
    page = tmp_path / "graphs" / "layout-xla-default-graph-07.html"
    assert used(page, width)["plots"] == 1
