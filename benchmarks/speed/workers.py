"""`run` with the default workers beside `--workers 1`: time, and the same bytes."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import render
from benchmarks.speed.measuring import in_turn
from common.settings import ROOT, SAMPLE

ROUNDS = 5
HOW = {"--workers 1": ("--workers", "1"), "default": ()}


def submission(data: Path, recipe: str, words: tuple[str, ...]) -> bytes:
    """Run a recipe on a data folder, packing included; return its submission."""
    with tempfile.TemporaryDirectory() as name:
        store, out = Path(name) / "store", Path(name) / "run"
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "pipeline",
            "run",
            "--data",
            data,
            "--recipe",
            recipe,
        ]
        command += ["--store", store, "--out", out, *words]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        return (out / "submission.csv").read_bytes()


def report(rounds: int = ROUNDS, data: Path = SAMPLE, recipe: str = "cpu") -> str:
    made = set[bytes]()
    work = {
        name: lambda words=words: made.add(submission(data, recipe, words))
        for name, words in HOW.items()
    }
    seconds = in_turn(work, rounds)
    ratios = sorted(many / one for one, many in zip(*seconds.values(), strict=True))
    rows = [(name, f"{median(own):.0f}") for name, own in seconds.items()]
    told = {"ratio": median(ratios), "least": ratios[0], "most": ratios[-1], "same": len(made) == 1}
    n_cores = len(os.sched_getaffinity(0))
    return render("workers", recipe=recipe, rounds=rounds, n_cores=n_cores, rows=rows, **told)
