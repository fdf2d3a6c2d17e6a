"""A disk that is too small, and grows: run below `unshare -rm`, see test_full_disk.py.

Each command is called again and again on a disk of its own in memory, which has a little more
space each time, until it succeeds. What came of it is printed as JSON.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.drills.processes import RECIPE, Scene, Watched

STEP = 1.35
FIRST_KIB = 24
CEILING_KIB = 64 << 10
MODEL = Path("models/layout-xla-random/cross_config_sage-seed0")


@dataclass(frozen=True)
class Attempt:
    """One call of a command.

    Attributes:
        kib: how large the disk was.
        stage: what it did last.
        lines: on standard error, but for the stages.
    """

    kib: int
    code: int
    stage: str
    lines: list[str]


@contextmanager
def disk(folder: Path) -> Iterator[Callable[[int], None]]:
    """Mount a disk; yield what gives it so many KiB."""
    folder.mkdir(parents=True, exist_ok=True)

    def mount(*options: str) -> None:
        subprocess.run(["mount", *options, str(folder)], check=True)

    mount("-t", "tmpfs", "-o", f"size={FIRST_KIB}k", "tmpfs")
    try:
        yield lambda kib: mount("-o", f"remount,size={kib}k")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def call_until_it_fits(
    scene: Scene, words: list[str], grow: Callable[[int], None], *, first_kib: int = FIRST_KIB
) -> list[Attempt]:
    """Call a command on a growing disk; return all attempts, of which the last one succeeds."""
    attempts: list[Attempt] = []
    kib = float(first_kib)
    while kib < CEILING_KIB:
        grow(int(kib))
        watched = Watched(scene, words, warm=True)
        code = watched.end()
        attempts.append(Attempt(int(kib), code, watched.stage, watched.lines))
        if code != 1:
            break
        kib *= STEP
    return attempts


def main(work: Path, data: Path, finished: Path) -> None:
    """Call each command; print the attempts and what was left by command."""
    told = {}
    collection = ("--collection", "layout:xla:random")
    place = work / "disk"
    logs = Scene.at(work / "logs", data)
    full = Scene(data, place / "run", place / "store", logs.log)
    roomy = Scene(data, place / "run", work / "store", logs.log)
    model = ("--run", finished / MODEL, "--data", data)
    recipe = ("--recipe", RECIPE)
    commands: dict[str, tuple[Scene, tuple[object, ...]]] = {
        "run": (full, tuple(full.run())),
        "prepare": (full, ("prepare", "--data", data, "--store", full.store, "--prune", "hops-1")),
        "train": (
            roomy,
            ("train", "--data", data, *recipe, *collection, "--out", place / "m", "--resume"),
        ),
        "predict": (roomy, ("predict", *model, "--split", "valid", "--out", place / "s.parquet")),
        "report": (roomy, ("report", "--run", place / "run")),
    }
    for name, (scene, words) in commands.items():
        with disk(place) as grow:
            first_kib = FIRST_KIB
            if name == "report":
                grow(CEILING_KIB)
                subprocess.run(["cp", "-r", str(finished), str(place / "run")], check=True)
                first_kib = _used_kib(place)
            elif name == "predict":  # its file is small: nothing is left but what this one takes
                first_kib = 4
                (place / "filler").write_bytes(bytes(first_kib << 10))
            given = [str(word) for word in words]
            attempts = call_until_it_fits(scene, given, grow, first_kib=first_kib)
            left = work / "left" / name
            subprocess.run(["mkdir", "-p", str(left)], check=True)
            subprocess.run(["cp", "-r", f"{place}/.", str(left)], check=True)
            told[name] = [asdict(attempt) for attempt in attempts]
    sys.stdout.write(json.dumps(told))


def _used_kib(folder: Path) -> int:
    """Return what a disk needs to keep what is on it, and hardly more."""
    done = subprocess.run(["du", "-sk", str(folder)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0]) + 8


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:4]))
