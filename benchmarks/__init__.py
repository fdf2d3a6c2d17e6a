"""Accuracy, speed and memory, measured; each program writes its page below docs/results."""

import models  # noqa: F401 -- before torch: it sets how waiting threads behave
from common.settings import ROOT

PAGES = ROOT / "docs" / "results"
