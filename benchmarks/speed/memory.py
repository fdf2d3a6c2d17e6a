"""Peak memory of a piece of work, measured in a process of its own."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common.settings import ROOT

# VmHWM is this process's own peak; getrusage would count its parent's before the exec as well.
PROGRAM = """
import re
from pathlib import Path
def peak_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
{setup}
before = peak_kib()
result = {work}
print(peak_kib() - before)
"""


def peak_mib(setup: str, work: str) -> float:
    """Return how many MiB the expression `work` adds to the peak after the imports in `setup`."""
    program = PROGRAM.format(setup=setup, work=work)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return int(done.stdout) / 1024


def peak_tree_mib(command: Sequence[str], *, every_s: float = 0.01) -> float:
    """Return the most MiB that a command and all processes below it held at once.

    Memory that processes share is counted once per process, so this errs upwards.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    peak_kib = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        while process.poll() is None:
            peak_kib = max(peak_kib, sum(map(_resident_kib, _tree(process.pid))))
            time.sleep(every_s)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak_kib / 1024


def _tree(pid: int) -> list[int]:
    """Return a process and all that come from it."""
    below = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        children = [int(child) for child in below.read_text().split()]
    except OSError:  # it has ended
        return []
    return [pid, *(one for child in children for one in _tree(child))]


def _resident_kib(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) if found else 0
