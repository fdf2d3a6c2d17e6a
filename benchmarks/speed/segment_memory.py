"""Memory and time on unpruned graphs as they grow: by segments, and the whole graph per step."""

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
from models.config.networks import CrossConfigSageConfig, SegmentSageConfig, TrainingConfig
from models.config.recipe import FeaturesConfig, Recipe
from models.registry import MODELS
from models.training.jobs import TrainJob

LARGEST_REAL = GraphSize(43_615, 3_142, 1_000)
SIZES = (
    *(GraphSize(1_000, 72, 1_000), GraphSize(5_000, 360, 1_000), GraphSize(21_808, 1_571, 1_000)),
    LARGEST_REAL,
)
STEPS, HEAD_STEPS = 12, 5
NETWORKS = ("segment_sage", "cross_config_sage")
HEADER = (
    *("nodes", "configurable", "network", "peak MiB: libraries", "training", "predicting"),
    *("seconds: per step", "per 1,000 configs"),
)


def recipe() -> Recipe:
    """Return both networks at their default widths, unpruned, for a few steps on one thread."""
    training = TrainingConfig(steps=STEPS, warmup_steps=2, checkpoint_every=STEPS)
    return Recipe(
        threads=1,
        features=FeaturesConfig(prune="none"),
        segment_sage=SegmentSageConfig(training=training, head_steps=HEAD_STEPS),
        cross_config_sage=CrossConfigSageConfig(training=training),
    )


def train_and_predict(path: Path, model: str) -> dict[str, float]:
    """Train on the graph at `path`, then score all its configs; return peaks and CPU seconds.

    `libraries_mib` is the peak before any graph is read, `train_mib` and `predict_mib` those after
    each; `train_s` is of a step, with reading the graph and, by segments, training the head;
    `predict_s` is of 1,000 configs, with cutting the graph.
    """
    found, file = {"libraries_mib": own_peak_mib()}, file_from_path(path)
    with tempfile.TemporaryDirectory() as name:
        start = time.process_time()
        MODELS[model].train(TrainJob(model, recipe(), [file], 0, Path(name)))
        found |= {"train_s": (time.process_time() - start) / STEPS, "train_mib": own_peak_mib()}
        graph = read_layout(file)
        ranker = MODELS[model].load(Path(name), recipe())
    start = time.process_time()
    assert len(ranker.score(graph)) == graph.n_configs
    seconds = (time.process_time() - start) * 1_000 / graph.n_configs
    return found | {"predict_s": seconds, "predict_mib": own_peak_mib()}


def measure(size: GraphSize, model: str) -> list[str]:
    """Measure a graph of this size in a fresh process; return the cells of its line."""
    with tempfile.TemporaryDirectory() as name:
        file = write_graph(Path(name), size)
        setup = "from benchmarks.speed.segment_memory import train_and_predict"
        costs = in_own_process(setup, f"train_and_predict(Path({str(file.path)!r}), {model!r})")
    cells = [f"{size.n_nodes:,}", f"{size.n_configurable:,}", model]
    cells += [f"{costs[f'{name}_mib']:,.0f}" for name in ("libraries", "train", "predict")]
    return [*cells, *(f"{costs[f'{name}_s']:.2f}" for name in ("train", "predict"))]


def report(sizes: Sequence[GraphSize] = SIZES) -> list[str]:
    """Measure; return the section of speed.md."""
    facts = {"config": recipe().segment_sage, "steps": STEPS, "head_steps": HEAD_STEPS}
    rows = [measure(size, model) for size in sizes for model in NETWORKS]
    return section("segment_memory", header=HEADER, rows=rows, **facts)
