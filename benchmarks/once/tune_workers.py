"""Two workers on one journal against one with the same budget: time, and the best that is found.

`python -m benchmarks.once.tune_workers` runs the command `tune` both ways, by turns, once for each
seed of the search, and writes benchmarks/TUNE_WORKERS.md. It wants two idle cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import tomli_w

from benchmarks.accuracy.table import row
from common.atomic import write_text
from common.git import revision
from common.settings import CONFIGS, SAMPLE, read_toml

PAGE = Path(__file__).with_name("TUNE_WORKERS.md")
GOAL = 0.65
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Search:
    """One search.

    Attributes:
        workers: processes.
        wall_s: of the whole command, imports included.
        best: the best trial's value.
        baseline: the recipe's own, the first trial.
        n_trials: that have ended.
    """

    workers: int
    wall_s: float
    best: float
    baseline: float
    n_trials: int


def space_of(seed: int, folder: Path) -> Path:
    """Write the space `cpu` with this seed, judged quickly: two folds, nothing pruned."""
    table = read_toml(CONFIGS / "tune" / "cpu.toml")
    table["study"] |= {"folds": 2, "seed": seed, "pruner": "none", "finalists": 0}
    path = folder / f"seed{seed}.toml"
    write_text(path, tomli_w.dumps(table))
    return path


def search(space: Path, out: Path, *, workers: int, trials: int, steps: int) -> Search:
    """Run the command once; its trials take `steps` steps of training."""
    command = [sys.executable, "-m", "pipeline", "tune", "--data", str(SAMPLE), "--recipe", "cpu"]
    command += ["--space", str(space), "--trials", str(trials), "--workers", str(workers)]
    command += ["--set", "threads=1", "--set", f"cross_config_sage.training.steps={steps}"]
    begin = time.perf_counter()
    subprocess.run(  # noqa: S603
        [*command, "--out", str(out)],
        check=True,
        env=os.environ | ONE_THREAD,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wall_s = time.perf_counter() - begin
    ended = json.loads((out / "trials.json").read_text(encoding="utf-8"))
    values = {trial["number"]: trial["value"] for trial in ended if trial["value"] is not None}
    return Search(workers, wall_s, max(values.values()), values[0], len(ended))


def searches(seeds: Sequence[int], *, trials: int, steps: int) -> Iterator[tuple[int, Search]]:
    """Run both ways for each seed; the one that begins changes from seed to seed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place, seed in enumerate(seeds):
            space = space_of(seed, folder)
            for workers in (1, 2) if place % 2 == 0 else (2, 1):
                out = folder / f"{seed}-{workers}"
                yield seed, search(space, out, workers=workers, trials=trials, steps=steps)


def report(found: Sequence[tuple[int, Search]], *, steps: int) -> list[str]:
    """Return the page."""
    one, two = ([it for _, it in found if it.workers == workers] for workers in (1, 2))
    ratio = sum(it.wall_s for it in two) / sum(it.wall_s for it in one)
    lines = [
        "# Two workers of one search",
        "",
        "Written by `python -m benchmarks.once.tune_workers`: the command `tune` on the sample, space",
        f"`cpu`, {steps} steps and two folds a trial, one thread a worker. Both have the same",
        "budget of trials; seconds are of the whole command, imports included.",
        "",
        row(["seed of the search", "workers", "trials", "seconds", "baseline", "best"]),
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for seed, it in sorted(found, key=lambda pair: (pair[0], pair[1].workers)):
        numbers = [f"{it.wall_s:.1f}", f"{it.baseline:.4f}", f"{it.best:.4f}"]
        lines.append(row([str(seed), str(it.workers), str(it.n_trials), *numbers]))
    spread = [max(it.best for it in each) - min(it.best for it in each) for each in (one, two)]
    return [
        *lines,
        "",
        f"Two workers take {ratio:.2f} of the time of one (goal: {GOAL} at most). Their best is "
        f"{mean(it.best for it in two):.4f} on average, that of one "
        f"{mean(it.best for it in one):.4f}; from seed to seed it differs by {spread[1]:.4f} "
        f"with two and by {spread[0]:.4f} with one.",
        "",
        f"Revision {revision()}.",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page; 1 if two workers take longer than the goal says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=PAGE, help="the page to write")
    options = parser.parse_args(arguments)
    found = []
    for seed, it in searches(range(options.seeds), trials=options.trials, steps=options.steps):
        print(f"seed {seed}: {it}", flush=True)  # noqa: T201
        found.append((seed, it))
    lines = report(found, steps=options.steps)
    write_text(options.out, "\n".join(lines) + "\n")
    print(lines[-3])  # noqa: T201
    totals = {w: sum(it.wall_s for _, it in found if it.workers == w) for w in (1, 2)}
    return int(totals[2] > GOAL * totals[1])


if __name__ == "__main__":
    sys.exit(main())
