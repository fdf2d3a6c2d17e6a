"""A run spread over two processes against one: by shards, and by Fabric within a training.

`python -m benchmarks.once.two_processes` runs the commands both ways by turns, checks that the
results are the same, and writes benchmarks/TWO_PROCESSES.md. It wants two idle cores.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.accuracy.table import row
from common.atomic import write_text
from common.git import revision
from common.settings import SAMPLE
from models.training.weights import load_tensors

PAGE = Path(__file__).with_name("TWO_PROCESSES.md")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
# Gradients are added in another order: the weights differ by rounding after few steps, and by what
# training has made of that after many.
FEW_STEPS = 16
WEIGHTS_DIFFER = 1e-5
MODEL = "cross_config_sage"
NETWORKS = (MODEL, "late_fusion_sage")  # of the recipe
JOBS = (
    "trainings of a run, in shards",
    "the whole run: these, then the rest",
    "one training, steps shared by Fabric",
)


@dataclass(frozen=True)
class Way:
    """One way to do a job: its seconds, round by round."""

    job: str
    way: str
    seconds: list[float]


def pipeline(*arguments: object) -> "subprocess.Popen[bytes]":
    """Begin a command of the project, with one thread."""
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "pipeline", *map(str, arguments)],
        env=os.environ | ONE_THREAD,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait(*processes: "subprocess.Popen[bytes]") -> None:
    """Wait for commands that were begun at once.

    Raises:
        CalledProcessError: one of them failed.
    """
    for process in processes:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, process.args)


def timed(job: Callable[..., None], *arguments: Any) -> float:
    """Return the wall seconds of a job."""
    begin = time.perf_counter()
    job(*arguments)
    return time.perf_counter() - begin


def run_command(folder: Path, store: Path, steps: int) -> list[object]:
    """Return the words of a run by the recipe `cpu` with two seeds."""
    words: list[object] = ["run", "--data", SAMPLE, "--recipe", "cpu", "--store", store]
    for key in ("seeds=[0,1]", "threads=1", *(f"{net}.training.steps={steps}" for net in NETWORKS)):
        words += ["--set", key]
    return [*words, "--out", folder]


def train_in_shards(folder: Path, store: Path, steps: int, n_shards: int) -> None:
    """Do a run's trainings, dealt to so many processes at once."""
    words = run_command(folder, store, steps)
    wait(*(pipeline(*words, "--shard", f"{n + 1}/{n_shards}") for n in range(n_shards)))


def finish_run(folder: Path, store: Path, steps: int) -> None:
    """Do the rest of a run whose trainings are done."""
    wait(pipeline(*run_command(folder, store, steps), "--resume"))


def train_by_fabric(folder: Path, steps: int, processes: int) -> None:
    """Train one network, the graphs of each step shared among processes."""
    settings = [f"{MODEL}.graphs_per_step=4", f"{MODEL}.training.steps={steps}", "threads=1"]
    settings.append(f"{MODEL}.training.processes={processes}")
    words = [word for setting in settings for word in ("--set", setting)]
    place = ["--collection", "layout:xla:random", "--model", MODEL, "--data", SAMPLE]
    wait(pipeline("train", "--recipe", "cpu", *place, *words, "--seed", "0", "--out", folder))


def weights_apart(folder: Path) -> float:
    """Return the greatest difference between the weights trained by one process and by two."""
    weights = []
    for name in ("1", "2"):
        path = folder / "fabric" / name / f"{MODEL}-seed0" / "model.safetensors"
        tensors = load_tensors(path)[0]
        weights.append({key: tensor.numpy().astype(float) for key, tensor in tensors.items()})
    return max(float(np.abs(weights[0][key] - weights[1][key]).max()) for key in weights[0])


def check_same(shards: Path, few_steps: Path) -> float:
    """Return how far weights are apart after few steps.

    Raises:
        AssertionError: shards change a submission, or Fabric the weights beyond rounding.
    """
    ones, twos = ((shards / "shards" / n / "submission.csv").read_bytes() for n in ("1", "2"))
    assert ones == twos, "two shards give another submission"
    far = weights_apart(few_steps)
    assert far < WEIGHTS_DIFFER, f"weights differ by {far}"
    return far


def measure(rounds: int, steps: int, folder: Path) -> tuple[list[Way], list[str]]:
    """Do each job both ways, by turns; return the seconds, and how far results are the same."""
    store = folder / "store"
    wait(pipeline("prepare", "--data", SAMPLE, "--store", store))
    ways = [Way(job, way, []) for job in JOBS for way in ("one process", "two processes")]
    for n in (1, 2):
        train_by_fabric(folder / "few" / "fabric" / str(n), FEW_STEPS, n)
    for number in range(rounds):
        own = folder / str(number)
        for n in (1, 2) if number % 2 == 0 else (2, 1):
            sharded, fabric = own / "shards" / str(n), own / "fabric" / str(n)
            training_s = timed(train_in_shards, sharded, store, steps, n)
            rest_s = timed(finish_run, sharded, store, steps)
            fabric_s = timed(train_by_fabric, fabric, 2 * steps, n)
            seconds = (training_s, training_s + rest_s, fabric_s)
            for way, taken_s in zip(ways[n - 1 :: 2], seconds, strict=True):
                way.seconds.append(taken_s)
        few, many = check_same(own, folder / "few"), weights_apart(own)
    return ways, [
        "Two shards and the rest give the bytes of one process's submission. The weights that two",
        f"processes train differ from one's by {few:.1e} at most after {FEW_STEPS} steps, since",
        "gradients are added in another order. Training amplifies that, to",
        f"{many:.1e} after {2 * steps} steps.",
    ]


def report(ways: Sequence[Way], same: Sequence[str], *, steps: int) -> list[str]:
    """Return the page."""
    lines = [
        "# Two processes",
        "",
        "Written by `python -m benchmarks.once.two_processes`: the sample, recipe `cpu` with two seeds,",
        f"one thread a process, {steps} steps of each network (Fabric: {2 * steps} steps of four",
        "graphs). Seconds are of whole commands, from starting Python on. The rest of a run",
        "(ranking, blending, report) is one process's either way: on a sample it weighs much.",
        "",
        row(["job", "way", "seconds", "median", "of one process's"]),
        "|---|---|---|---:|---:|",
    ]
    for number, way in enumerate(ways):
        one = median(ways[number - number % 2].seconds)
        every = ", ".join(f"{value:.1f}" for value in way.seconds)
        found = median(way.seconds)
        lines.append(row([way.job, way.way, every, f"{found:.1f}", f"{found / one:.2f}"]))
    return [*lines, "", *same, "", f"Revision {revision()}."]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        ways, same = measure(options.rounds, options.steps, Path(name))
    write_text(options.out, "\n".join(report(ways, same, steps=options.steps)) + "\n")
    print(options.out)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
