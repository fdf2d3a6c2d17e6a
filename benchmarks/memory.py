"""Peak memory of a piece of work, measured in a process of its own."""

import subprocess
import sys

from settings import ROOT

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
