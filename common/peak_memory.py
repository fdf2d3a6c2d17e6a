"""This process's peak of resident memory, from a moment on: Linux's VmHWM."""

import re
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): brings VmHWM down to what is resident now


def reset_peak() -> bool:
    """Begin to count anew; tell whether the system lets us."""
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak_mib() -> float | None:
    """Return the peak since the last reset, or since the process began, in MiB; None if unknown."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
    except OSError:
        return None
    return int(found[1]) / 1024 if found else None
