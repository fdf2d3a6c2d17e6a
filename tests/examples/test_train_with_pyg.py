"""The plain PyG example trains, and ranks as its network does as a model of a recipe."""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from common.settings import ROOT, SAMPLE
from data.tree import find_graphs
from examples import train_with_pyg as plain
from features.pyg import TpuGraphsLayout

STEPS, SEEDS = 400, 10


def test_it_trains_and_prints_each_collection(
    tiny_tree: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["train_with_pyg", "--data", str(tiny_tree), "--steps", "3"]
    monkeypatch.setattr(sys, "argv", arguments)
    plain.main()
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("step 1: loss ")
    collections = {file.collection.name for file in TpuGraphsLayout(tiny_tree, "valid").files}
    assert {line.split(": ")[0] for line in lines} == collections
    assert all("kendall_tau" in line and "opa" in line for line in lines)


def test_the_page_shows_what_the_sample_holds() -> None:
    page = (ROOT / "docs" / "guides" / "pyg.md").read_text(encoding="utf-8")
    shown = re.findall(r"^(layout:\S+): kendall_tau .*, (\d+) graphs$", page, flags=re.MULTILINE)
    held = Counter(file.collection.name for file in find_graphs(SAMPLE, splits=("valid",)))
    layouts = {name: n for name, n in held.items() if name.startswith("layout:")}
    assert {name: int(n) for name, n in shown} == layouts
    assert f"the valid split's {sum(int(n) for _, n in shown)} graphs" in page


def test_the_snippets_of_the_page_are_a_program(tiny_tree: Path, capsys) -> None:
    page = (ROOT / "docs" / "guides" / "pyg.md").read_text(encoding="utf-8")
    program = "".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL))
    assert program.count('"data/sample"') == 2
    names: dict = {}
    exec(program.replace('"data/sample"', repr(str(tiny_tree))), names)
    assert -1 <= names["report"]["kendall_tau"] <= 1
    assert capsys.readouterr().out.startswith(f"{names['report']['kendall_tau']} ")
