"""Tests that each registered model, custom model in OWN and heuristic must pass."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from common.metrics import kendall_tau
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, distinct_configs, group_means
from data.tree import GraphFile, find_graphs
from ensembles.ranking.configs import add_query_configs
from models.config.custom import short_name
from models.config.recipe import Recipe, load_recipe
from models.registry import MODELS, NETWORKS, ModelEntry, Ranker, TrainJob, model_entry
from models.trees.baseline import BASELINES
from tests.models.rearrange import permute_configs, relabel_nodes

# Add custom models here, by kind, to run the same tests on them.
OWN: dict[str, list[str]] = {"layout": ["examples.gat:Gat"], "tile": []}
WITH_OWN = [f"{kind}.models={json.dumps(places)}" for kind, places in OWN.items() if places]
OWN_NAMES = [short_name(place) for places in OWN.values() for place in places]
# A second use of a network, with its other norm and with statistics.
SECOND = {"sage_nodes": {"model": "cross_config_sage", "norm": "nodes", "statistics": True}}
WITH_OWN += [f"{n}.{key}={json.dumps(value)}" for n in SECOND for key, value in SECOND[n].items()]
NAMES = [*MODELS, *OWN_NAMES, *SECOND]
RANKERS = [*NAMES, "baseline-layout", "baseline-tile"]


SMOKE = load_recipe("smoke", WITH_OWN)


def entry_of(name: str) -> ModelEntry:
    return model_entry(SMOKE, name)


def train_files(tree: Path, kind: str) -> list[GraphFile]:
    return [f for f in find_graphs(tree, splits=("train",)) if f.collection.kind == kind]


# A recipe that learns one graph by heart: few, large steps on all its configs.
TRAINING = {"steps": 150, "learning_rate": 5e-3, "warmup_steps": 5, "log_every": 50}
BY_HEART = Recipe.from_table(
    {
        **{kind: {"models": places} for kind, places in OWN.items() if places},
        **{name: {"training": TRAINING} for name in OWN_NAMES},
        **{name: {"hidden": 32, "training": TRAINING} for name in (*NETWORKS, "segment_sage")},
        **{name: {**table, "hidden": 32, "training": TRAINING} for name, table in SECOND.items()},
        "tgraph": {"hidden": 32, "dropout": 0, "training": TRAINING},
        "baseline_gcn": {"configs_per_step": 64, "training": TRAINING},
        "layout_boosting": {"num_boost_round": 150, "min_rows_per_leaf": 1},
        "tile_boosting": {"num_boost_round": 150, "min_rows_per_leaf": 1},
    },
    source="one graph",
    trust=SMOKE.trust,
)


@pytest.fixture(scope="module")
def trained(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory):
    """Return a function that gives a ranker, trained on one graph, and that graph."""

    @functools.cache
    def get(name: str) -> tuple[Ranker, Graph]:
        kind = name.removeprefix("baseline-") if name not in NAMES else entry_of(name).kind
        graphs = sorted(map(read_graph, train_files(tiny_tree, kind)), key=lambda g: g.file.part)
        graph = max(graphs, key=lambda graph: graph.n_configs)
        if name not in NAMES:
            return BASELINES[kind], graph
        folder = tmp_path_factory.mktemp(name)
        entry_of(name).train(TrainJob(name, BY_HEART, [graph.file], 0, folder))
        return entry_of(name).load(folder, BY_HEART), graph

    return get


@pytest.mark.parametrize("name", RANKERS)
def test_scores_follow_permuted_configs_and_not_the_order_of_nodes(name: str, trained) -> None:
    ranker, graph = trained(name)
    scores, rng = ranker.score(graph), np.random.default_rng(1)
    assert scores.std() > 0
    largest, order = np.abs(scores).max(), rng.permutation(graph.n_configs)
    permuted = ranker.score(permute_configs(graph, order))
    np.testing.assert_allclose(permuted, scores[order], atol=1e-5 * largest)
    relabelled = ranker.score(relabel_nodes(graph, rng.permutation(graph.n_nodes)))
    np.testing.assert_allclose(relabelled, scores, atol=1e-4 * largest)


@pytest.mark.parametrize("name", NAMES)
def test_overfits_one_graph(name: str, trained) -> None:
    ranker, graph = trained(name)
    first, group = distinct_configs(graph)  # one config measured twice has two runtimes
    scores = ranker.score(graph)[first]
    tau = kendall_tau(scores, group_means(graph.runtime_ns, group))
    # A linear ranker or a baseline learns nothing by heart.
    assert tau > (0.5 if "linear" in name else -1 if name == "tile_baseline" else 0.95)


@pytest.mark.parametrize("name", NAMES)
def test_equal_configs_get_equal_scores(name: str, trained) -> None:
    ranker, graph = trained(name)
    twice = permute_configs(graph, np.r_[np.arange(graph.n_configs), 0, 1])
    scores = ranker.score(twice)
    np.testing.assert_allclose(scores[-2:], scores[:2], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_scores(name: str, tiny_tree: Path, tmp_path: Path) -> None:
    files = train_files(tiny_tree, entry_of(name).kind)[:2]
    graph = read_graph(files[0])
    scores = []
    for run in ("first", "second"):
        entry_of(name).train(TrainJob(name, SMOKE, files, 7, tmp_path / run))
        scores.append(entry_of(name).load(tmp_path / run, SMOKE).score(graph))
    np.testing.assert_array_equal(scores[0], scores[1])


# tgraph scores configs by shuffled batches, as the winners did: whoever is there takes part.
BESIDE = [name for name in NAMES if entry_of(name).kind == "layout" and name != "tgraph"]


@pytest.mark.parametrize("name", BESIDE)
def test_query_configs_change_nobodys_score(name: str, trained) -> None:
    ranker, graph = trained(name)
    known = graph.configs.rows(np.arange(graph.n_configs))
    new = known[[0, 1, 2]]
    new[:, :3] = known[[3, 4, 5], :3]  # parts nodes that all configs of the file tie

    def scored(*query_configs):
        scores = ranker.score(add_query_configs(graph, query_configs)).astype(np.float64)
        # Linear rankers may add a constant to all scores of a graph.
        return scores - scores[0]

    together, scores = scored(new, known[:1]), scored()
    near = {"atol": 1e-5 * np.ptp(scores), "rtol": 0}
    np.testing.assert_allclose(together[: len(known)], scores, **near)
    np.testing.assert_allclose(together[-1], 0, **near)
    for one, score in zip(new, together[len(known) :], strict=False):
        np.testing.assert_allclose(score, scored(one[None])[-1], **near)


@pytest.mark.parametrize("name", [name for name in NAMES if SMOKE.training_of(name)])
def test_each_network_trains_in_half_precision(name: str, tiny_tree: Path, tmp_path: Path) -> None:
    files, scores = train_files(tiny_tree, entry_of(name).kind), {}
    for precision in ("float32", "bfloat16"):
        sets = [*WITH_OWN, f"{name}.training.steps=3", f"{name}.training.precision={precision}"]
        recipe = load_recipe("smoke", sets)
        entry_of(name).train(TrainJob(name, recipe, files[:1], 0, tmp_path / precision))
        ranker = entry_of(name).load(tmp_path / precision, recipe)
        scores[precision] = ranker.score(read_graph(files[0]))
    assert not np.array_equal(scores["float32"], scores["bfloat16"])
    assert np.corrcoef(scores["float32"], scores["bfloat16"])[0, 1] > 0.9
    # Heads of the project's networks are float32, because scores in half precision have ties.
    halves = torch.from_numpy(scores["bfloat16"])
    is_half = (halves.bfloat16().float() == halves).float().mean() > 0.1
    assert not is_half or name in OWN_NAMES


PROGRAM = """
import os, sys
before = dict(os.environ)
from ensembles import load_graph, load_ranker, rank
from models.config.custom import imported
from models.config.recipe import Recipe
from models.registry import NETWORKS, TRAIN_FUNCTIONS, model_entry
recipe = Recipe()
for name in recipe.all_models:
    model_entry(recipe, name)
    if name in NETWORKS:
        kind, place = NETWORKS[name]
        imported(place)
        imported(TRAIN_FUNCTIONS[kind])
print(*(name for name in ("torch_geometric", "scipy.stats", "lightgbm") if name in sys.modules))
assert not {key for key in os.environ.items() - before.items() if "OMP" in key[0]}
"""


def test_the_default_recipe_needs_no_slow_library_to_be_imported() -> None:
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (process.stdout.strip(), process.stderr) == ("", "")
