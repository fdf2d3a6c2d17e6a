"""The check of a kernel's packages: versions, and what fails to be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from kernels.build import collect_files
from kernels.packages import is_older, pinned_versions

MISSING = "planted_gone: No module named 'planted_gone'"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("from numpy import array, gone", "numpy: numpy.gone"),
        ("import scipy.gone", "scipy: scipy.gone: No module named 'scipy.gone'"),
        ("def late():\n    from scipy.stats import norm, gone", "scipy: scipy.stats.gone"),
        ("from planted_extra import gone", ""),
        ("import numpy", ""),
    ],
)
def test_names_that_pinned_packages_lack_fail_the_check(
    project: Path, line: str, fault: str
) -> None:
    pins = "numpy==1\nscipy==1\nkaggle==1\nplanted-gone==1\n"
    (project / "requirements.txt").write_text(pins)
    (project / "features" / "code.py").write_text(f"{line}\n")
    words = [sys.executable, "-m", "kernels.packages"]
    ended = subprocess.run(words, cwd=project, check=False, capture_output=True, text=True)
    said = [text.removeprefix("kernel: the image lacks ") for text in ended.stdout.splitlines()]
    assert said[0] == f"planted-gone: {MISSING} (requirements.txt)"
    assert said[1:] == ([f"{fault} (features/code.py)"] if fault else [])
    assert "--newer planted-gone" in ended.stderr and ended.returncode == 1


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
