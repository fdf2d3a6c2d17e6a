"""The page's example of a program of one's own is complete: it is saved and measured as it is."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.settings import ROOT
from data.collect.manifest import read_manifest
from data.read import read_graph
from data.tree import find_graphs
from pipeline.__main__ import app

PAGE = (ROOT / "docs" / "collect.md").read_text(encoding="utf-8")


def test_the_documented_program_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    (source,) = re.findall(r"Save this as `my_model\.py`:\n\n```python\n(.*?)```", PAGE, re.S)
    (command,) = re.findall(r"-m pipeline (collect [^\n]* --program my_model:step [^\n]*)", PAGE)
    (tmp_path / "my_model.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = command.replace("--configs 30", "--configs 10").split()
    done = CliRunner().invoke(app, [*words, "--keep-noisy"])
    out = tmp_path / words[words.index("--out") + 1]
    manifest, name = read_manifest(out), "layout:xla:random:my_model.step"
    entry = (manifest["graphs"] | manifest["left_out"])[name]
    assert (entry["family"], entry["n_configs"], entry["failed"]) == ("two_layers", 10, [])
    assert entry["n_genes"] >= 2
    assert done.exit_code == int(name in manifest["left_out"])
    if done.exit_code:
        assert "slowest over fastest config" in entry["reason"]
    else:
        assert read_graph(find_graphs(out)[0]).is_labelled
