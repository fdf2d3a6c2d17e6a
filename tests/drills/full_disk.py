"""A disk that is too small, and grows: run below `unshare -rm`, see test_full_disk.py.

`run` is called again and again on a disk of its own in memory, which has a little more space each
time, until it succeeds. What came of it is printed as JSON.
"""

import json
import subprocess
import sys
from pathlib import Path

from tests.drills.processes import Scene, Watched

STEP = 1.35
FIRST_KIB = 24
CEILING_KIB = 64 << 10


def main(work: Path, data: Path, workers: int) -> None:
    place = work / "disk"
    place.mkdir()
    scene = Scene(data, place / "run", place / "store", work, workers)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={FIRST_KIB}k", "tmpfs", str(place)]
    subprocess.run(mount, check=True)
    attempts, kib = [], float(FIRST_KIB)
    while kib < CEILING_KIB:
        grow = ["mount", "-o", f"remount,size={int(kib)}k", str(place)]
        subprocess.run(grow, check=True)
        watched = Watched(scene, scene.run(), warm=True)
        code = watched.end()
        attempts.append({"code": code, "stage": watched.stage, "lines": watched.lines})
        if code != 1:
            break
        kib *= STEP
    subprocess.run(["cp", "-r", str(place), str(work / "left")], check=True)
    sys.stdout.write(json.dumps(attempts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
