"""Accuracy, speed and memory, measured; each program writes its page below docs/results."""

import os

from common.settings import ROOT

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch

PAGES = ROOT / "docs" / "results"
