"""Use a page in a real browser, at any width.

Needs Chromium (`chromium` of Debian and Ubuntu, or Chrome).
"""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
# A script for a page, which uses the page as a reader does, and posts the results.
USE = """<script>addEventListener("load", () => allDrawn.then(() => {
  const all = pattern => [...document.querySelectorAll(pattern)];
  const shown = () => all(".sortable tbody tr").filter(row => !row.hidden);
  const column = number => shown().map(row => row.cells[number].textContent.trim());
  const told = { plots: all(".plot").length, drawn: all(".plot .main-svg:first-child").length };
  const [search] = all("input"), headers = all(".sortable button");
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
    """Use a page as somebody would in a window of `width` pixels, which it has to fit into."""
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
