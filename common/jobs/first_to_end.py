"""Importing this makes a process the first that Linux ends if memory runs out, not the command."""

from contextlib import suppress
from pathlib import Path

with suppress(OSError):  # not Linux
    Path("/proc/self/oom_score_adj").write_text("1000")
