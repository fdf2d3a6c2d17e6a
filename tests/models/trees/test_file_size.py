"""Trees that learned many configs of a program rank a small file of it like a large one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy.tasks import split_distinct, write_configs
from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import LayoutGraph, distinct_configs
from data.graphs.packing import pack_values
from data.tree import GraphFile
from models.config.recipe import load_recipe
from models.registry import Ranker, TrainJob
from models.trees import boosting
from tests.features.graphs import random_configs
from tests.support.real_data import real_file, requires_real_data


def learn(file: GraphFile, folder: Path, seed: int = 0) -> Ranker:
    """Train with the settings of the recipe `cpu`."""
    recipe = load_recipe("cpu", ["threads=1"])
    boosting.train_boosting(TrainJob("layout_boosting", recipe, [file], seed, folder))
    return boosting.load_boosting("layout_boosting", folder, recipe)


@pytest.fixture
def searched(layout_graph: LayoutGraph) -> LayoutGraph:
    """A file like that of a search: the rarer the layouts of a config, the slower the config."""
    rng, (n_configs, n_vectors) = np.random.default_rng(0), (300, 6)
    k = len(layout_graph.node_config_ids)
    share = 0.5 ** np.arange(n_vectors)
    share /= share.sum()
    drawn = rng.choice(n_vectors, (n_configs, k), p=share)
    vectors = random_configs(rng, (n_vectors, k))
    return replace(
        layout_graph,
        configs=pack_values(vectors[drawn, np.arange(k)]),
        runtime_ns=(1e6 - 1e5 * np.log(share[drawn]).sum(axis=1)).astype(np.int64),
    )


def test_scores_do_not_depend_on_the_size_of_the_file(
    searched: LayoutGraph, tmp_path: Path
) -> None:
    n = len(distinct_configs(searched)[0])
    ranker = learn(write_configs(searched, np.arange(n // 2), tmp_path, "train"), tmp_path / "run")
    whole = ranker.score(searched)
    assert kendall_tau(whole, searched.runtime) > 0.5
    few = np.arange(0, searched.n_configs, 9)
    alone, within = ranker.score(searched.only(few)), whole[few]
    # The linear ranker centres its scores in each file.
    np.testing.assert_allclose(alone - alone.mean(), within - within.mean(), atol=1e-4)


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
