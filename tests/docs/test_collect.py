"""The kernel of one's own in docs/guides/measure.md is measured by the command beside it."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from autotune.tiles.catalogue import find_kernel
from autotune.tiles.kernel import tiled_function
from common.settings import ROOT
from tests.support.command_line import call

PAGE = (ROOT / "docs" / "guides" / "measure.md").read_text(encoding="utf-8")


def test_the_kernel_on_the_page_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax")
    section = PAGE.split("### A kernel of your own")[1].split("###")[0]
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
    found = json.loads(call(*words, "--device", "cpu", "--keep-noisy", "--json"))
    assert found["tile:xla:my_matmul_gelu"]["n_configs"] == 8
