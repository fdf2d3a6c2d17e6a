"""The page in a real browser: every picture loads, and nothing is wider than a phone.

Needs Chromium (`chromium` of Debian and Ubuntu, or Chrome).
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from submissions.report.page import write_report_page
from tests.submissions.pages import illustrated_report

pytestmark = pytest.mark.slow
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# The page itself holds no script: this one is added to a copy, and leaves what it measured.
MEASURE = """<script>addEventListener("load", () => {
  const pictures = [...document.images];
  parent.postMessage(JSON.stringify({
    pictures: pictures.length,
    loaded: pictures.filter(picture => picture.complete && picture.naturalWidth > 0).length,
    widest: Math.max(...pictures.map(picture => picture.getBoundingClientRect().right)),
    page: document.documentElement.scrollWidth,
    window: document.documentElement.clientWidth,
    smallest: Math.min(...[...document.querySelectorAll("p,td,li,figcaption,dd")].map(
      element => parseFloat(getComputedStyle(element).fontSize))),
  }), "*");
});</script>"""
# Headless windows are no narrower than 500; a frame can be as narrow as a phone.
FRAME = """<body style="margin:0"><script>
addEventListener("message", event => document.body.dataset.measured = event.data);
</script><iframe src="report.html" style="border:0;width:{width}px;height:2400px"></iframe>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [390, 1100])
def test_pictures_load_and_fit_the_window(width: int, tmp_path: Path) -> None:
    report, ranks = illustrated_report(20)
    page = tmp_path / "report.html"
    write_report_page(report, page, ranks)
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    opened = page.read_text().replace("<details>", "<details open>")
    page.write_text(opened.replace("</body>", f"{MEASURE}</body>"))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--window-size=1100,2400", "--virtual-time-budget=5000", "--dump-dom"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, check=True, timeout=120)
    found = re.search(r'data-measured="([^"]*)"', done.stdout.decode())
    assert found
    measured: dict[str, Any] = json.loads(found[1].replace("&quot;", '"'))
    assert measured["window"] == width
    assert measured["pictures"] == measured["loaded"] == 14
    assert measured["page"] <= width
    assert measured["widest"] <= width
    assert measured["smallest"] >= 12
