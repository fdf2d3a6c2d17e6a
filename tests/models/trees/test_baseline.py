"""The untrained baseline as a member: a run folder without a model ranks by tile steps."""

from pathlib import Path

import numpy as np

from common.settings import SAMPLE
from data.graph_store.stored_graph import read_graph
from data.tree import collection_named, find_graphs
from models.config.recipe import load_recipe
from models.registry import TrainJob, load_model
from models.train import train_model
from models.trees.baseline import BASELINES


def test_every_seed_of_the_baseline_has_the_scores_of_the_untrained_order(tmp_path: Path) -> None:
    tile = collection_named("tile:xla")
    files = find_graphs(SAMPLE, collections=(tile,), splits=("train",))[:2]
    recipe, graph = load_recipe("smoke", ["tile.models=[tile_baseline]"]), read_graph(files[0])
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        train_model(TrainJob("tile_baseline", recipe, files, seed, folder), tile, resume=False)
        scores = load_model(folder).score(graph)
        np.testing.assert_array_equal(scores, BASELINES["tile"].score(graph))
