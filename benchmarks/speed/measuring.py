"""Time and peak memory of a piece of work, the latter in a process of its own."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.settings import ROOT

PROGRAM = """
from pathlib import Path
from benchmarks.speed.measuring import own_peak_mib
{setup}
before = own_peak_mib()
result = {work}
print(own_peak_mib() - before)
"""


def own_peak_mib() -> float:
    """Return the most memory that this process has held.

    Not by getrusage, which would count its parent's before the exec as well.
    """
    return _kib("self", "VmHWM") / 1024


def peak_mib(setup: str, work: str) -> float:
    """Return how many MiB the expression `work` adds to the peak after the imports in `setup`."""
    command = [sys.executable, "-c", PROGRAM.format(setup=setup, work=work)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return float(done.stdout)


def in_turn(
    work: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: bool = False
) -> dict[str, list[float]]:
    """Return each piece's seconds over rounds that take turns, so a slow spell hits all.

    Args:
        warm_up: run one round before that does not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(-warm_up, rounds):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def peak_tree_mib(command: Sequence[str], *, every_s: float = 0.01) -> float:
    """Return the most MiB that a command and all processes below it held at once.

    Memory that processes share is counted once per process, so this errs upwards.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    peak_kib = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        while process.poll() is None:
            peak_kib = max(peak_kib, sum(_kib(pid, "VmRSS") for pid in _tree(process.pid)))
            time.sleep(every_s)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak_kib / 1024


def _tree(pid: int) -> list[int]:
    below = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        children = [int(child) for child in below.read_text().split()]
    except OSError:  # it has ended
        return []
    return [pid, *(one for child in children for one in _tree(child))]


def _kib(pid: int | str, field: str) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return 0
    found = re.search(rf"{field}:\s+(\d+)", status)
    return int(found[1]) if found else 0
