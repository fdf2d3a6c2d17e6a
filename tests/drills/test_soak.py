"""`run --workers 2` again and again in one process: nothing grows from run to run.

SOAK_MINUTES says for how long (10).
"""

import gc
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import pytest

from tests.drills.processes import Scene, check_same
from tests.support.command_line import call

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
WARM_UP = 3  # runs, until caches are filled
MAX_GROWTH_MIB = 8.0  # of medians: of the memory that the allocator keeps
MAX_GROWTH_PER_RUN_MIB = 0.1  # pytest keeps what each run logs
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def held_now(temporary: Path, store: Path) -> dict[str, int]:
    """Count what is there between two runs, besides memory."""
    return {
        "open files": len([*Path("/proc/self/fd").iterdir()]),
        "threads": threading.active_count(),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "temporary files": len(list(temporary.rglob("*"))),
        "stored files": len(list(store.rglob("*"))),
    }


def resident_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB


@pytest.mark.slow
@pytest.mark.timeout(int(600 + 90 * MINUTES))
def test_nothing_grows_from_run_to_run(
    calm: Scene,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # read anew
    monkeypatch.setenv("PIPELINE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    scene = calm.elsewhere(tmp_path / "soak", workers=2)
    held, memory = [], []
    end_s = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end_s or len(memory) < 2 * WARM_UP:
        call(*scene.run())
        check_same(scene.out, calm.out)
        shutil.rmtree(scene.out)
        held.append(held_now(temporary, tmp_path / "store"))
        memory.append(resident_mib())
    warm, third = memory[WARM_UP:], max(1, (len(memory) - WARM_UP) // 3)
    first, last = median(warm[:third]), median(warm[-third:])
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{len(memory)} runs: {first:.0f} MiB, later {last:.0f} MiB; {held[-1]}"
        )
    assert all(each == held[WARM_UP] for each in held[WARM_UP:]), held
    assert last - first <= MAX_GROWTH_MIB + MAX_GROWTH_PER_RUN_MIB * len(warm), memory
