"""`run` with the default workers beside `--workers 1`: time, memory, same bytes."""

import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import render
from benchmarks.speed.measuring import TreeCost, add_tree_cost
from common.settings import SAMPLE

ROUNDS = 5
HOW = {"--workers 1": ("--workers", "1"), "default": ()}
SUBMISSION = "submission.csv"


def run_once(
    folder: Path, data: Path, recipe: str, words: tuple[str, ...]
) -> tuple[TreeCost, bytes]:
    """Run a recipe on a data folder, packing included; return its cost and its submission."""
    cost, out = TreeCost(), folder / "run"
    command = [sys.executable, "-m", "pipeline", "run", "--data", str(data), "--recipe", recipe]
    command += ["--store", str(folder / "store"), "--out", str(out), *words]
    add_tree_cost(cost, command, every_s=0.1)
    return cost, (out / SUBMISSION).read_bytes()


def report(rounds: int = ROUNDS, data: Path = SAMPLE, recipe: str = "cpu") -> str:
    costs: dict[str, list[TreeCost]] = {name: [] for name in HOW}
    made = set[bytes]()
    for _ in range(rounds):
        for name, words in HOW.items():
            with tempfile.TemporaryDirectory() as folder:
                cost, submission = run_once(Path(folder), data, recipe, words)
            costs[name].append(cost)
            made.add(submission)
    one, many = costs.values()
    ratios = sorted(b.seconds / a.seconds for a, b in zip(one, many, strict=True))
    rows = [
        (name, f"{median(c.seconds for c in own):.0f}", f"{max(c.peak_mib for c in own):.0f}")
        for name, own in costs.items()
    ]
    told = {"ratio": median(ratios), "least": ratios[0], "most": ratios[-1], "same": len(made) == 1}
    n_cores = len(os.sched_getaffinity(0))
    return render("workers", recipe=recipe, rounds=rounds, n_cores=n_cores, rows=rows, **told)
