"""Trees that learned many configs of a program rank a small file of it like a large one."""

from pathlib import Path

import numpy as np

from benchmarks.accuracy.tasks import split_distinct, write_configs
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import distinct_configs
from data.tree import GraphFile
from models.config.recipe import load_recipe
from models.registry import Ranker, TrainJob
from models.trees import boosting
from tests.support.real_data import real_file, requires_real_data


def learn(file: GraphFile, folder: Path, seed: int = 0) -> Ranker:
    """Train with the settings of the recipe `cpu`."""
    recipe = load_recipe("cpu", ["threads=1"])
    boosting.train_boosting(TrainJob("layout_boosting", recipe, [file], seed, folder))
    return boosting.load_boosting("layout_boosting", folder, recipe)


@requires_real_data
def test_small_files_of_a_tpu_program_are_ranked_as_well_as_large_ones(tmp_path: Path) -> None:
    graph = read_layout(real_file("layout:xla:default:unet3d"))
    n = len(distinct_configs(graph)[0])
    small, large = [], []
    for seed in range(3):
        held_out, train = split_distinct(n, seed)
        assert (len(train), len(held_out)) == (545, 136)
        folder = tmp_path / str(seed)
        ranker = learn(write_configs(graph, train, folder, "train"), folder / "run", seed)
        files = [held_out, *np.array_split(held_out, 4)]
        judged = [read_layout(write_configs(graph, own, folder, "valid")) for own in files]
        taus = [kendall_tau(ranker.score(own), own.runtime) for own in judged]
        large.append(taus[0])
        small.append(np.mean(taus[1:]))
    # With statistics that depend on the other configs of the file, small files have .644.
    assert np.mean(small) > 0.73
    assert np.mean(large) > 0.74
