"""A file call of `run` fails: the run goes on, or one line names a file and --resume mends all.

The calls are drawn from those of an undisturbed run, each kind of call equally often. If the disk
is full, all later calls of the kind fail too. DRILL_CALLS is the number of failures for one worker,
and for two workers. DRILL_SEED changes the calls.
"""

import os
import random
import tempfile
from collections import Counter
from dataclasses import replace
from errno import EDQUOT, EINTR, EIO, ENODEV, ENOSPC, ESTALE
from pathlib import Path

import pytest

from tests.drills.processes import Scene, Watched
from tests.support.failing_calls import failing, needs_compiler

READS, WRITES = (EIO, ESTALE, EINTR), (EIO, ESTALE, ENOSPC, EDQUOT, EINTR)
ERRORS = {
    **{"read": READS, "open": (*READS, ENOSPC), "mmap": (ENODEV,), "flock": READS},
    **dict.fromkeys(("write", "fsync", "rename", "link", "mkdir", "truncate"), WRITES),
    "unlink": (EIO, ESTALE),
}


def calls_of(scene: Scene, folder: Path) -> Counter[str]:
    """Count the file calls of an undisturbed run."""
    log = scene.log / "calls"
    watched = Watched(scene, env={**failing("none", EIO, folder), "FAIL_LOG": str(log)})
    assert watched.end() == 0, watched.lines
    return Counter(line.split()[0] for line in log.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_compiler
@pytest.mark.parametrize("workers", [1, 2])
def test_a_call_that_fails_is_one_line_and_the_run_resumes(
    workers: int, calm: Scene, tmp_path: Path
) -> None:
    rng = random.Random(int(os.environ.get("DRILL_SEED", "0")) + workers)
    # The files of the calls are below this folder, and the output of the processes is not.
    base = tmp_path.parent
    log = Path(tempfile.mkdtemp(prefix="drill-"))
    counts = calls_of(replace(calm.elsewhere(tmp_path / "first", workers=workers), log=log), base)
    kinds, stopped = sorted(counts.keys() & ERRORS.keys()), 0
    assert {"read", "write", "open", "rename"} <= set(kinds)
    for place in range(int(os.environ.get("DRILL_CALLS", "20"))):
        call = kinds[place % len(kinds)]
        number, nth = rng.choice(ERRORS[call]), rng.randint(1, counts[call])
        scene = replace(calm.elsewhere(tmp_path / str(place), workers=workers), log=log)
        is_full = number in (ENOSPC, EDQUOT)
        once = {} if is_full else {"FAIL_ONCE": str(scene.out.parent / "once")}
        env = {**failing(call, number, base, nth=nth, always=is_full), **once}
        watched = Watched(scene, env=env)
        what = f"{call} {nth} of {counts[call]}: {os.strerror(number)}"
        if watched.end():
            assert str(base) in watched.is_refused(), (what, watched.lines)
            stopped += 1
            watched = Watched(scene)
        assert watched.end() == 0, (what, watched.lines)
        watched.ends_as(calm)
    assert stopped, "no failure was noticed"
