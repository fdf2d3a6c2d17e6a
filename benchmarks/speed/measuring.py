"""Time and peak memory of a piece of work, the latter in a process of its own."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from common.settings import ROOT

Work = Mapping[str, Callable[[], object]]
Clock = Callable[[], float]


def own_peak_mib() -> float:
    """Return the most memory that this process has held.

    Not by getrusage, which would count its parent's before the exec as well.
    """
    return _kib("self", "VmHWM") / 1024


def in_own_process(setup: str, result: str) -> Any:
    """Run the statements in `setup` in a fresh process; return the expression `result`, by JSON."""
    program = f"import json\nfrom pathlib import Path\n{setup}\nprint(json.dumps({result}))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


def peak_mib(setup: str, work: str) -> float:
    """Return how many MiB the expression `work` adds to the peak after the imports in `setup`."""
    imported = "from benchmarks.speed.measuring import own_peak_mib"
    work = f"before = own_peak_mib()\nresult = {work}"
    added: float = in_own_process(f"{imported}\n{setup}\n{work}", "own_peak_mib() - before")
    return added


def in_turn(
    work: Work, rounds: int, *, warm_up: bool = False, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Return each piece's seconds over rounds that take turns, so a slow spell hits all.

    Args:
        warm_up: run one round before that does not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(-warm_up, rounds):
        for name, run in work.items():
            start = clock()
            run()
            if number >= 0:
                seconds[name].append(clock() - start)
    return seconds


@dataclass
class TreeCost:
    """What a command and all processes below it took; `peak_mib` is what they held at once.

    Memory that processes share is counted once per process, so this errs upwards.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    peak_mib: float = 0.0


def add_tree_cost(
    cost: TreeCost,
    command: Sequence[str],
    *,
    output: IO[bytes] | None = None,
    every_s: float = 0.01,
) -> None:
    """Run a command, and add what it took to `cost`, also where it fails or is stopped.

    Args:
        output: where its output goes; None = nowhere.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    before, start, cpu = replace(cost), time.perf_counter(), _children_cpu_s()
    with subprocess.Popen(command, cwd=ROOT, stdout=output or subprocess.DEVNULL) as process:  # noqa: S603
        try:
            while process.poll() is None:
                held_kib = sum(_kib(pid, "VmRSS") for pid in _tree(process.pid))
                cost.peak_mib = max(cost.peak_mib, held_kib / 1024)
                time.sleep(every_s)
        finally:
            if process.returncode is None:
                process.terminate()  # it keeps what it has done
                process.wait()
            cost.seconds = before.seconds + time.perf_counter() - start
            cost.cpu_s = before.cpu_s + _children_cpu_s() - cpu
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


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
