"""The function in docs/guides/measure.md is measured by the command there."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from common.settings import ROOT
from data.manifest import read_manifest
from pipeline.__main__ import app

PAGE = (ROOT / "docs" / "guides" / "measure.md").read_text(encoding="utf-8")


def test_the_function_on_the_page_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    (source,) = re.findall(r"Save this as `my_model\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
    (line,) = re.findall(r"fast-or-slow (collect [^\n]* --program my_model:step [^\n]*)", PAGE)
    (tmp_path / "my_model.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    words = shlex.split(line.replace("--configs 30", "--configs 10"))
    done = CliRunner().invoke(app, words)
    manifest = read_manifest(tmp_path / words[words.index("--out") + 1])
    name = "layout:xla:random:my_model.step"
    entry = (manifest["graphs"] | manifest["left_out"])[name]
    assert (entry["family"], entry["n_configs"], entry["failed"]) == ("two_layers", 10, [])
    # Its time may depend too little on layouts.
    assert done.exit_code == int(name in manifest["left_out"])
