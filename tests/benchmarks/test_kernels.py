"""`make kernels`: what the kernels of a step need of each card, compiled without a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT

pytest.importorskip("triton")

# The program compiles in a process without the interpreter that other tests need.
PROGRAM = """
import sys
from pathlib import Path
from benchmarks import errors_in_one_line, kernels
kernels.PAGES = Path(sys.argv[1])
cards = dict.fromkeys(int(number) for number in sys.argv[2].split(","))
kernels.CARDS = [
    card._replace(block_kib=int(sys.argv[3]) or card.block_kib)
    for card in kernels.CARDS if card.capability in cards
]
if sys.argv[3] != "0":
    kernels.WIDTHS, kernels.CONFIGS = (64,), (16,)
with errors_in_one_line():
    kernels.main()
"""


def compile_kernels(
    folder: Path, *, capabilities: str, block_kib: int = 0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), capabilities, str(block_kib)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_kernel_suits_each_card(tmp_path: Path) -> None:
    done = compile_kernels(tmp_path, capabilities="75,80,86,90")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    page = (tmp_path / "kernels.md").read_text()
    for name in ("attend", "attend_backward", "norm", "pool", "sparse_rows", "sum_rows"):
        for card in ("T4, float16", "A100, bfloat16", "RTX 3090, float32", "H100, bfloat16"):
            assert f"| `{name}` | {card} | 256 |" in page
    assert "| `gate_backward` | H100, bfloat16 | 256 |" in page
    assert "| `gate_backward` | T4" not in page


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_card_with_too_little_shared_memory_fails_the_command(tmp_path: Path) -> None:
    done = compile_kernels(tmp_path, capabilities="90", block_kib=8)
    assert done.returncode == 1
    assert ": 15,872 bytes of shared memory; expected 8 KiB" in done.stdout
    assert "gate_backward, H100, width 64, bfloat16, {" in done.stdout
    assert done.stderr.count("\n") == 1
    assert "kernels do not suit a card" in done.stderr
    assert not (tmp_path / "kernels.md").exists()
