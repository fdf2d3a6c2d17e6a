"""The function and the kernel in docs/guides/measure.md are measured by the commands there."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from autotune.tiles.catalogue import find_kernel
from autotune.tiles.kernel import tiled_function
from common.settings import ROOT
from data.manifest import read_manifest
from pipeline.__main__ import app
from tests.support.command_line import call

PAGE = (ROOT / "docs" / "guides" / "measure.md").read_text(encoding="utf-8")


def test_the_kernel_on_the_page_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    section = PAGE.split("### A kernel of your own")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (line,) = re.findall(r"^fast-or-slow (.*)$", section, re.MULTILINE)
    (tmp_path / "my_kernel.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    kernel = find_kernel("my_kernel:matmul_gelu")
    arrays = kernel.arguments()
    for tile in kernel.tiles[[0, -1]].tolist():
        made = tiled_function(kernel, tile)(*arrays)
        np.testing.assert_allclose(made, kernel.whole(*arrays), rtol=1e-3, atol=1e-3)
    words = shlex.split(line.replace("--configs 30", "--configs 8"))
    found = json.loads(call(*words, "--device", "cpu", "--json"))
    assert found["tile:xla:my_matmul_gelu"]["n_configs"] == 8


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
