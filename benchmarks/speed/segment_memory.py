"""Memory and time of the layout GNN for whole graphs, unpruned, as graphs grow.

`python -m benchmarks.speed.segment_memory` prints the section.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.speed.measuring import own_peak_mib
from benchmarks.speed.stages import write_graph
from common.settings import ROOT
from data.read import read_layout
from data.synthetic import GraphSize
from data.tree import file_from_path
from models.config.networks import SegmentSageConfig, TrainingConfig
from models.config.recipe import FeaturesConfig, Recipe
from models.segments.task import load, train
from models.training.jobs import TrainJob

LARGEST_REAL = GraphSize(43_615, 3_142, 1_000)
SIZES = (GraphSize(21_808, 1_571, 1_000), LARGEST_REAL, GraphSize(87_230, 6_284, 1_000))
STEPS, HEAD_STEPS, FILLED = 24, 5, 10
GOAL_MIB = 4_096


@dataclass(frozen=True)
class Costs:
    """What one graph costs, in a process of its own.

    Attributes:
        libraries_mib: the peak before any graph is read.
        train_mib, predict_mib: the peak after training, and after predicting in that process.
        first_s, step_s: processor seconds, as all here; medians of the first steps, which fill the
            table, and of the last ones.
        head_s: all steps of the head, with the fresh embeddings they need.
        predict_s: all configs of the graph, with cutting it.
    """

    libraries_mib: float
    train_mib: float
    predict_mib: float
    first_s: float
    step_s: float
    head_s: float
    predict_s: float


def recipe() -> Recipe:
    """Return the model at its default widths, unpruned, for a few steps on one thread."""
    training = TrainingConfig(steps=STEPS, warmup_steps=2, checkpoint_every=STEPS)
    config = SegmentSageConfig(training=training, head_steps=HEAD_STEPS)
    return Recipe(threads=1, features=FeaturesConfig(prune="none"), segment_sage=config)


def train_and_predict(path: Path, run_dir: Path) -> Costs:
    """Train on the graph at `path`, then score all its configs."""
    libraries = own_peak_mib()
    times = [time.process_time()]
    file = file_from_path(path)
    job = TrainJob(
        "segment_sage",
        recipe(),
        [file],
        0,
        run_dir,
        progress=lambda *_: times.append(time.process_time()),
    )
    train(job)
    trained = own_peak_mib()
    steps = [later - earlier for earlier, later in pairwise(times)]
    graph = read_layout(file)
    ranker = load(run_dir, recipe())
    start = time.process_time()
    scores = ranker.score(graph)
    seconds = time.process_time() - start
    assert len(scores) == graph.n_configs
    return Costs(
        libraries_mib=libraries,
        train_mib=trained,
        predict_mib=own_peak_mib(),
        first_s=median(steps[1:4]),  # the very first one reads the graph
        step_s=median(steps[STEPS - FILLED : STEPS - 1]),  # the last one writes the checkpoint
        head_s=sum(steps[STEPS:]),
        predict_s=seconds,
    )


def measure(size: GraphSize) -> Costs:
    """Measure a graph of this size in a fresh process."""
    with tempfile.TemporaryDirectory() as name:
        file = write_graph(Path(name), size)
        command = [sys.executable, "-m", "benchmarks.speed.segment_memory"]
        command += ["--graph", str(file.path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    return Costs(**json.loads(done.stdout.splitlines()[-1]))


def node_input_mib(size: GraphSize) -> float:
    """Return what the 140 float32 features of all nodes take."""
    return size.n_nodes * 140 * 4 / 2**20


def report(sizes: Sequence[GraphSize] = SIZES) -> list[str]:
    """Measure; return the section of speed.md."""
    config = recipe().segment_sage
    lines = [
        "## Whole graphs by segments",
        "",
        f"`segment_sage` unpruned: segments of at most {config.segment_nodes:,} nodes, width",
        f"{config.hidden}, {config.blocks} blocks, {config.configs_per_step} configs per step of a",
        f"pool of {config.table_configs}, one thread, {STEPS} steps and {HEAD_STEPS} of the head.",
        "Each graph in a process of its own; peaks include the interpreter and its libraries;",
        "seconds are the processor's, which others at work on the machine do not lengthen.",
        f"Goal for {LARGEST_REAL.n_nodes:,} nodes: at most {GOAL_MIB:,} MiB.",
        "",
        "| nodes | configurable | node features MiB | peak MiB: libraries | training | predicting "
        "| seconds per step: first | later | head | per 1,000 configs |",
        "|---:|---:|" + "---:|" * 8,
    ]
    for size in sizes:
        costs = measure(size)
        memory = [costs.libraries_mib, costs.train_mib, costs.predict_mib]
        seconds = [costs.first_s, costs.step_s, costs.head_s]
        seconds.append(costs.predict_s * 1_000 / size.n_configs)
        cells = [f"{size.n_nodes:,}", f"{size.n_configurable:,}", f"{node_input_mib(size):.0f}"]
        cells += [f"{value:,.0f}" for value in memory] + [f"{value:.2f}" for value in seconds]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print the section; or, for one graph in this process, its costs as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, help="measure this file here")
    graph = parser.parse_args().graph
    if graph is None:
        print("\n".join(report()))  # noqa: T201
        return
    with tempfile.TemporaryDirectory() as name:
        costs = train_and_predict(graph, Path(name))
    print(json.dumps(asdict(costs)))  # noqa: T201


if __name__ == "__main__":
    main()
