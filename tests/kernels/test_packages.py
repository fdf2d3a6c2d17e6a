"""The names that kernels need: which are searched for, and that the pinned packages have them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from kernels.build import collect_files
from kernels.packages import imported_names, is_older, missing_names, pinned_versions

CODE = """
import os.path, numpy as np
from scipy import sparse as sp
from .relative import nothing
if TYPE_CHECKING:
    from typing import Unreal
try:
    from zlib_ng import fast
except ImportError:
    fast = None

def late():
    from threadpoolctl import get_cached_controller
    np.random.seed(0), sp.csr_array, late.attribute
"""


def test_imports_in_functions_and_attributes_of_modules_are_needed_names() -> None:
    assert set(imported_names(ast.parse(CODE))) == {
        ("os.path", ""),
        ("numpy", ""),
        ("scipy", "sparse"),
        ("threadpoolctl", "get_cached_controller"),
        ("numpy", "random"),
        ("numpy", "random.seed"),
        ("scipy", "sparse.csr_array"),
    }


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("from numpy import array, gone", {"numpy": ["numpy.gone (data/code.py)"]}),
        ("import numpy as np; np.linalg.gone", {"numpy": ["numpy.linalg.gone (data/code.py)"]}),
        (
            "import scipy.gone",
            {"scipy": ["scipy.gone: No module named 'scipy.gone' (data/code.py)"]},
        ),
        ("from scipy import stats; stats.gone.far", {"scipy": ["scipy.stats.gone (data/code.py)"]}),
        ("from numpy import ndarray; ndarray.gone", {}),
        ("from planted_extra import gone", {}),
        ("import planted_gone", {"planted-gone": ["planted_gone: No module named 'planted_gone'"]}),
    ],
)
def test_missing_names_of_pinned_packages_are_found(
    tmp_path: Path, line: str, missing: dict[str, list[str]]
) -> None:
    (tmp_path / "requirements.txt").write_text("numpy==1\nscipy==1\nplanted-gone==1\nkaggle==1\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "code.py").write_text(f"{line}\nimport kaggle.gone\n")
    found = missing_names(tmp_path)
    assert set(found) == set(missing)
    for package, names in missing.items():
        assert all(map(str.startswith, found[package], names))


def test_submodule_with_an_optional_package_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_base").mkdir()
    (tmp_path / "planted_base" / "__init__.py").write_text("")
    (tmp_path / "planted_base" / "board.py").write_text("import planted_board\n")
    (tmp_path / "planted_base" / "broken.py").write_text("raise ValueError('compiled for another')")
    (tmp_path / "requirements.txt").write_text("planted_base==1\n")
    (tmp_path / "code.py").write_text("from planted_base import board\nimport planted_base.board")
    monkeypatch.syspath_prepend(tmp_path)
    assert missing_names(tmp_path) == {}
    (tmp_path / "code.py").write_text("import planted_base.broken")
    assert missing_names(tmp_path) == {
        "planted-base": ["planted_base.broken: compiled for another (code.py)"]
    }


@pytest.mark.parametrize(
    ("tested", "expected"), [("0.0.9", False), ("9999", True), ("9999.0+cu128", True)]
)
def test_versions_are_compared_by_their_numbers(tested: str, expected: bool) -> None:
    assert is_older("pytest", tested) is expected
    assert is_older("planted-gone", tested, if_missing=expected) is expected


def test_pinned_packages_have_every_name_that_a_kernel_needs(tmp_path: Path) -> None:
    assert set(pinned_versions(ROOT)) >= {"numpy", "protobuf", "torch-geometric", "tomli-w"}
    for name, content in collect_files(ROOT).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    words = [sys.executable, "-m", "kernels.packages"]
    ended = subprocess.run(words, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
