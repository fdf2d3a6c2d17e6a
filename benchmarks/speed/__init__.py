"""Speed and memory, a file for each section of the page; here is what measures a piece of work."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from common.settings import ROOT


def in_own_process(setup: str, result: str) -> Any:
    """Run the statements in `setup` in a fresh process; return the expression `result`, by JSON."""
    program = f"import json\nfrom pathlib import Path\n{setup}\nprint(json.dumps({result}))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return json.loads(done.stdout.splitlines()[-1])


def in_turn(
    work: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return each piece's seconds over rounds that take turns, so a slow spell hits all.

    One round before does not count.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(1 + rounds):
        for name, run in work.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: taken[1:] for name, taken in seconds.items()}
