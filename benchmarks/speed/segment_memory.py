"""Memory and time on unpruned graphs as they grow: by segments, and the whole graph per step."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import render
from benchmarks.speed import in_own_process
from common.machine import own_peak_mib
from common.progress import watched_by
from data.graph_store.stored_graph import read_layout
from data.synthetic.graphs import GraphSize
from data.synthetic.write import write_sized
from data.tree import file_from_path
from models.config.networks import CrossConfigSageConfig, SegmentSageConfig, TrainingConfig
from models.config.recipe import FeaturesConfig, Recipe, load_recipe
from models.registry import MODELS, TrainJob

LARGEST_REAL = GraphSize(43_615, 3_142, 1_000)
SIZES = (
    *(GraphSize(1_000, 72, 1_000), GraphSize(5_000, 360, 1_000), GraphSize(21_808, 1_571, 1_000)),
    LARGEST_REAL,
)
SEGMENT_NODES, ONE_SEGMENT = SegmentSageConfig().segment_nodes, 1_000_000
# By name: the model, the nodes of a segment, and steps. What is remembered of segments is computed
# in the first steps; with the whole graph in each, a step is like another.
NETWORKS = {
    "segment_sage": ("segment_sage", SEGMENT_NODES, 40),
    "segment_sage, one segment": ("segment_sage", ONE_SEGMENT, 4),
    "cross_config_sage": ("cross_config_sage", SEGMENT_NODES, 4),
}
HEAD_STEPS, TOTAL_STEPS = 1, load_recipe("segments").segment_sage.training.steps
# What is measured, by column, and how it is written.
COSTS = {
    **dict.fromkeys(("peak MiB: libraries", "training", "predicting"), ",.0f"),
    **{"seconds: first step": ".2f", "later step": ".2f", f"{TOTAL_STEPS} steps": ",.0f"},
    "per 1,000 configs": ".2f",
}


def recipe(segment_nodes: int, steps: int) -> Recipe:
    """Return both networks at their default widths, unpruned, for a few steps on one thread."""
    training = TrainingConfig(steps=steps, warmup_steps=2, checkpoint_every=steps)
    return Recipe(
        threads=1,
        features=FeaturesConfig(prune="none"),
        segment_sage=SegmentSageConfig(
            training=training, head_steps=HEAD_STEPS, segment_nodes=segment_nodes
        ),
        cross_config_sage=CrossConfigSageConfig(training=training),
    )


def train_and_predict(path: Path, name: str) -> list[float]:
    """Train on the graph at `path`, then score all its configs; return COSTS, in CPU seconds.

    The first peak is that before any graph is read, the others those after each; the first step
    reads the graph; a later one is the median of the last half of the steps, as which those of
    TOTAL_STEPS count that were not taken; predicting cuts the graph.
    """
    file, (model, segment_nodes, steps) = file_from_path(path), NETWORKS[name]
    own_recipe, ends = recipe(segment_nodes, steps), [time.process_time()]
    peaks = [own_peak_mib()]
    with tempfile.TemporaryDirectory() as folder:
        with watched_by(lambda what, done, total: ends.append(time.process_time())):
            MODELS[model].train(TrainJob(model, own_recipe, [file], 0, Path(folder)))
        peaks.append(own_peak_mib())
        graph = read_layout(file)
        ranker = MODELS[model].load(Path(folder), own_recipe)
    seconds = np.diff(ends[: steps + 1])  # those of the head come after
    step_s = float(np.median(seconds[steps // 2 :]))
    total_s = float(seconds.sum()) + (TOTAL_STEPS - steps) * step_s
    start = time.process_time()
    assert len(ranker.score(graph)) == graph.n_configs
    predict_s = (time.process_time() - start) * 1_000 / graph.n_configs
    return [*peaks, own_peak_mib(), float(seconds[0]), step_s, total_s, predict_s]


def measure(size: GraphSize, name: str) -> list[str]:
    """Measure a graph of this size in a fresh process; return the cells of its line."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(write_sized(Path(folder), size).path)
        setup = "from benchmarks.speed.segment_memory import train_and_predict"
        costs = in_own_process(setup, f"train_and_predict(Path({path!r}), {name!r})")
    head = [f"{size.n_nodes:,}", f"{size.n_configurable:,}", name]
    forms = COSTS.values()
    return [*head, *(f"{cost:{form}}" for cost, form in zip(costs, forms, strict=True))]


def report(sizes: Sequence[GraphSize] = SIZES) -> str:
    return render(
        "segment_memory",
        header=("nodes", "configurable", "network", *COSTS),
        rows=[measure(size, name) for size in sizes for name in NETWORKS],
        config=recipe(SEGMENT_NODES, 1).segment_sage,
        steps=NETWORKS["segment_sage"][2],
        whole_steps=NETWORKS["cross_config_sage"][2],
    )
