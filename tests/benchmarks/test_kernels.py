"""`make kernels`: what the kernels of a step need of each card, compiled without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kernels import CARDS, KIB, KernelResources, Launch
from common.settings import ROOT

pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_kernel_suits_each_card(tmp_path: Path) -> None:
    # The program compiles in a process without the interpreter that other tests need.
    program = f"from benchmarks import kernels; kernels.PAGES = {tmp_path!r}; kernels.main()"
    subprocess.run(
        [sys.executable, "-c", f"from pathlib import PosixPath; {program}"],
        check=True,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    page = (tmp_path / "kernels.md").read_text()
    for name in ("attend", "attend_backward", "norm", "pool", "sparse_rows"):
        for card in ("T4, float16", "A100, bfloat16", "RTX 3090, float32", "H100, bfloat16"):
            assert f"| `{name}` | {card} | 256 |" in page
    assert "| `gate_backward` | H100, bfloat16 | 256 |" in page
    assert "| `gate_backward` | T4" not in page


@pytest.mark.parametrize(
    ("stack", "shared", "fault"),
    [
        (0, 227 * KIB, ""),
        (0, 227 * KIB + 1, ": 232,449 bytes of shared memory; expected 227 KiB"),
        (8, 0, ": a stack of 8 bytes; expected 0"),
    ],
)
def test_a_kernel_that_does_not_suit_a_card_is_named(stack: int, shared: int, fault: str) -> None:
    launch = Launch(CARDS[-1], "bfloat16", 64, "attend", (), (("BLOCK", 16),))
    message = KernelResources(launch, 4, 32, stack, shared).fault()
    place = "attend, H100, width 64, bfloat16, {'BLOCK': 16}" if fault else ""
    assert message == place + fault
