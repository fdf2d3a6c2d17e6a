"""The pages in a real browser: every chart is drawn, tables sort, nothing is wider than a phone.

Needs Chromium (`chromium` of Debian and Ubuntu, or Chrome).
"""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from pipeline.optimize.write import TEMPLATE
from submissions.compare import compare_reports, paired_scores
from submissions.report.charts import BEST_SCHEMA, Chart, library
from submissions.report.page import (
    render_page,
    write_comparison_page,
    write_graph_pages,
    write_report_page,
)
from tests.submissions.pages import LAYOUT, illustrated_report

pytestmark = pytest.mark.slow
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# Added to a copy of a page: uses it as somebody would, and tells what came of it.
USE = """<script>addEventListener("load", () => allDrawn.then(() => {
  const all = pattern => [...document.querySelectorAll(pattern)];
  const shown = () => all(".sortable tbody tr").filter(row => !row.hidden);
  const column = number => shown().map(row => row.cells[number].textContent.trim());
  const told = { plots: all(".plot").length, drawn: all(".plot .main-svg:first-child").length };
  const [search] = all("input"), [list] = all("select"), headers = all(".sortable button");
  if (list) {
    list.selectedIndex = 1;
    list.dispatchEvent(new Event("change"));
    told.visible = list.nextElementSibling.data.map(trace => trace.visible);
  }
  if (search) {
    headers[3].focus();
    told.focused = document.activeElement === headers[3];
    headers[3].click();
    headers[3].click();
    told.sorted = [headers[3].parentElement.ariaSort, column(3)];
    search.value = "default graph-07";
    search.dispatchEvent(new Event("input"));
    told.found = column(0);
  }
  all("details").forEach(part => part.open = true);
  told.page = document.documentElement.scrollWidth;
  told.window = document.documentElement.clientWidth;
  told.smallest = Math.min(...all("p,td,th,li,figcaption,dd,.plot text").map(
    element => parseFloat(getComputedStyle(element).fontSize)));
  parent.postMessage(JSON.stringify(told), "*");
}));</script>"""
# Headless windows are no narrower than 500; a frame can be as narrow as a phone.
FRAME = """<body style="margin:0"><script>
addEventListener("message", event => document.body.dataset.told = event.data);
</script><iframe src="{page}" style="border:0;width:{width}px;height:2400px"></iframe>"""


def used(page: Path, width: int) -> dict[str, Any]:
    page.write_text(page.read_text().replace("</body>", f"{USE}</body>"))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(width=width, page=page.name))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--window-size=1400,2400", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, check=True, timeout=120)
    found = re.search(r'data-told="([^"]*)"', done.stdout.decode())
    assert found
    told: dict[str, Any] = json.loads(unescape(found[1]))
    assert told["window"] == width
    assert told["page"] <= width
    assert told["drawn"] == told["plots"]
    assert told["smallest"] >= 12
    return told


def check_table(told: dict[str, Any]) -> None:
    assert told["focused"]
    direction, values = told["sorted"]
    assert direction == "descending"
    numbers = [float(text.replace("−", "-").replace("–", "-inf")) for text in values]
    assert numbers == sorted(numbers, reverse=True)
    assert told["found"] == ["graph-07"]


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [390, 1400])
def test_pages_are_drawn_sorted_searched_and_fit_the_window(width: int, tmp_path: Path) -> None:
    report, ranks = illustrated_report(20)
    write_report_page(report, tmp_path / "report.html", ranks)
    told = used(tmp_path / "report.html", width)
    assert told["plots"] == 1 + 1 + 1
    assert told["visible"] == [place == 1 for place in range(12)]
    check_table(told)

    rows = {"names": [["dot (node 3)"]], "cells": [[["output - → {0,1}, input - → {0,1}", ""]]]}
    first = {"collection": [LAYOUT], "graph": ["graph-07"], "configs": [[3, 4]], "against": [0]}
    best = pl.DataFrame(first | rows | {"n_more": [0]}, schema=BEST_SCHEMA)
    write_graph_pages(tmp_path, report, ranks, best)
    page = tmp_path / "graphs" / "layout-xla-default-graph-07.html"
    assert used(page, width)["plots"] == 1

    other = illustrated_report(15)[0]
    pairs, compared = paired_scores(report, other), compare_reports(report, other)
    keys = {"recipe.cross_config_sage.training.checkpoint_every": [1, 2]}
    write_comparison_page(tmp_path / "both.html", ["runs/a", "runs/b"], compared, pairs, keys)
    told = used(tmp_path / "both.html", width)
    assert told["plots"] == 2
    check_table(told)

    tried = {"default": [[2, 1.0]], "search": [[0, 0.5], [1, 0.75], [3, 4.0]]}
    again = {"finalist 1": [0.4, 0.5, 0.6], "default again": [0.9, 1.0, 1.1]}
    charts = [Chart("candidates", "a", "b", tried), Chart("verified", "c", "d", again)]
    facts = {"program": "p", "is_faster": False, "default_ms": 2.0, "aa_ratio": 1.0}
    facts |= {"aa_ci95": [0.9, 1.1], "environment": {}}
    facts["candidates"] = {"tried": 4, "failed": 0, "verified": 2}
    shown = {"result": facts, "charts": charts, "rows": [], "reasons": []}
    page = tmp_path / "optimize.html"
    page.write_text(render_page(TEMPLATE, library=library(), **shown))
    assert used(page, width)["plots"] == 2
