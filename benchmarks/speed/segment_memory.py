"""Memory and time of the layout GNN for whole graphs, unpruned, as graphs grow."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import section
from benchmarks.speed.measuring import in_own_process, own_peak_mib
from benchmarks.speed.stages import write_graph
from data.read import read_layout
from data.synthetic.plans import GraphSize
from data.tree import file_from_path
from models.config.networks import SegmentSageConfig, TrainingConfig
from models.config.recipe import FeaturesConfig, Recipe
from models.graph_task import load
from models.segments.network import SegmentSage
from models.segments.task import train
from models.training.jobs import TrainJob

LARGEST_REAL = GraphSize(43_615, 3_142, 1_000)
SIZES = (GraphSize(21_808, 1_571, 1_000), LARGEST_REAL, GraphSize(87_230, 6_284, 1_000))
STEPS, HEAD_STEPS = 24, 5
HEADER = (
    *("nodes", "configurable", "peak MiB: libraries", "training", "predicting"),
    *("seconds: training", "per 1,000 configs"),
)


def recipe() -> Recipe:
    """Return the model at its default widths, unpruned, for a few steps on one thread."""
    training = TrainingConfig(steps=STEPS, warmup_steps=2, checkpoint_every=STEPS)
    config = SegmentSageConfig(training=training, head_steps=HEAD_STEPS)
    return Recipe(threads=1, features=FeaturesConfig(prune="none"), segment_sage=config)


def train_and_predict(path: Path) -> dict[str, float]:
    """Train on the graph at `path`, then score all its configs; return peaks and CPU seconds.

    `libraries_mib` is the peak before any graph is read, `train_mib` and `predict_mib` those after
    each; `predict_s` is of 1,000 configs, with cutting the graph.
    """
    found, file = {"libraries_mib": own_peak_mib()}, file_from_path(path)
    with tempfile.TemporaryDirectory() as name:
        start = time.process_time()
        train(TrainJob("segment_sage", recipe(), [file], 0, Path(name)), SegmentSage)
        found |= {"train_s": time.process_time() - start, "train_mib": own_peak_mib()}
        graph = read_layout(file)
        ranker = load("segment_sage", Path(name), recipe(), SegmentSage)
    start = time.process_time()
    assert len(ranker.score(graph)) == graph.n_configs
    seconds = (time.process_time() - start) * 1_000 / graph.n_configs
    return found | {"predict_s": seconds, "predict_mib": own_peak_mib()}


def measure(size: GraphSize) -> list[str]:
    """Measure a graph of this size in a fresh process; return the cells of its line."""
    with tempfile.TemporaryDirectory() as name:
        file = write_graph(Path(name), size)
        setup = "from benchmarks.speed.segment_memory import train_and_predict"
        costs = in_own_process(setup, f"train_and_predict(Path({str(file.path)!r}))")
    cells = [f"{size.n_nodes:,}", f"{size.n_configurable:,}"]
    cells += [f"{costs[f'{name}_mib']:,.0f}" for name in ("libraries", "train", "predict")]
    return [*cells, *(f"{costs[f'{name}_s']:.1f}" for name in ("train", "predict"))]


def report(sizes: Sequence[GraphSize] = SIZES) -> list[str]:
    """Measure; return the section of speed.md."""
    facts = {"config": recipe().segment_sage, "steps": STEPS, "head_steps": HEAD_STEPS}
    return section("segment_memory", header=HEADER, rows=map(measure, sizes), **facts)
