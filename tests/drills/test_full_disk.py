"""A full disk gives one error line in any stage, and --resume finishes the run on a larger disk.

The test calls `run` on a separate disk in memory, which grows after each failure, until `run`
succeeds. This module as a script makes the calls below `unshare -rm`, and prints their results as
JSON.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.settings import ROOT
from tests.drills.processes import Scene, Watched, check_same, check_same_store
from tests.support.command_line import run_in

STEP = 1.35
FIRST_KIB, CEILING_KIB = 24.0, 64 << 10


def has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    script = 'd=$(mktemp -d) && mount -t tmpfs tmpfs "$d" && exec chroot / true'
    tried = ["unshare", "-rmn", "sh", "-c", script]
    return not subprocess.run(tried, capture_output=True, check=False, timeout=20).returncode


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has_namespaces(), reason="needs a disk of its own: unshare -rm")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_line_until_there_is_space(
    workers: int, calm: Scene, tmp_path: Path
) -> None:
    words = ["unshare", "-rm", sys.executable, "-m", "tests.drills.test_full_disk"]
    output = run_in(ROOT, *words, str(tmp_path), str(calm.data), str(workers))
    *failed, last = json.loads(output)
    assert last["code"] == 0, last
    for attempt in failed:
        errors = [line for line in attempt["lines"] if line.startswith("error: ")]
        assert attempt["code"] == 1 and len(errors) == 1, attempt
        assert errors[0].endswith("No space left on device"), attempt
        assert "/disk" in errors[0], attempt
        assert not any("Traceback" in line for line in attempt["lines"]), attempt
    stages = {attempt["stage"] for attempt in failed}
    assert len(stages) >= 4 and any(stage.startswith("train ") for stage in stages), stages
    check_same(tmp_path / "left" / "run", calm.out)
    check_same_store(tmp_path / "left" / "store", calm.store)


def fill(work: Path, data: Path, workers: int) -> None:
    place, kib = work / "disk", FIRST_KIB
    place.mkdir()
    scene = Scene(data, place / "run", place / "store", work, workers)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)], check=True)
    attempts = []
    while kib < CEILING_KIB:
        grow = ["mount", "-o", f"remount,size={int(kib)}k", str(place)]
        subprocess.run(grow, check=True)
        watched = Watched(scene)
        code = watched.end()
        attempts.append({"code": code, "stage": watched.stage, "lines": watched.lines})
        if code != 1:
            break
        kib *= STEP
    subprocess.run(["cp", "-r", str(place), str(work / "left")], check=True)
    sys.stdout.write(json.dumps(attempts))


if __name__ == "__main__":
    fill(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
