"""Fuzz each door for some seconds, which sufficed to find the known defects."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.drills.fuzz.doors import DOORS, try_door


@pytest.mark.slow
@pytest.mark.parametrize("door", sorted(DOORS))
def test_nothing_but_a_line_leaves_the_door(door: str) -> None:
    pytest.importorskip("atheris", reason="make fuzz installs it")
    command = [sys.executable, "-m", "tests.drills.fuzz", door, "--minutes", "0.5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]


@pytest.mark.parametrize("door", sorted(DOORS))
def test_the_seeds_are_let_in(door: str, tmp_path: Path) -> None:
    seeds = list(DOORS[door].seeds())
    assert len(seeds) > 1
    for content in seeds:
        try_door(DOORS[door], content, tmp_path / f"input{DOORS[door].suffix}")
