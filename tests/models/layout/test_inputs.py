"""Layout models on graphs pruned by each rule, from recipe to scores."""

from pathlib import Path

import numpy as np
import pytest

from data.graphs.graph import LayoutGraph
from data.read import read_layout
from data.tree import collection_named, find_graphs
from features.layout_codes import N_SYMBOLS
from features.pruning.rules import RULES
from features.scaling import fit_node_scaler
from models.config.recipe import load_recipe
from models.layout.inputs import layout_inputs
from models.registry import MODELS
from models.training.jobs import Ranker, TrainJob
from tests.models.rearrange import permute_configs, relabel_nodes

ALL_RULES = [*RULES, "hops-1"]
LEARNS_ONE_PROGRAM = "config_columns_boosting"  # and reads none of its graph
SEGMENT = "segment_sage.segment_nodes=1000"
LAYOUT_MODELS = [
    name for name, model in MODELS.items() if model.kind == "layout" and name != LEARNS_ONE_PROGRAM
]


def train(name: str, rule: str, tree: Path, out: Path) -> tuple[Ranker, LayoutGraph]:
    """Train on two graphs for a few steps; return the ranker and a graph it has not seen."""
    # Where a graph is cut depends on the order of its nodes, so here it is one segment.
    overrides = [f"features.prune={rule}", SEGMENT]
    recipe = load_recipe("smoke", overrides)
    collection = collection_named("layout:xla:random")
    files = find_graphs(tree, collections=(collection,), splits=("train",))[:2]
    MODELS[name].train(TrainJob(name, recipe, files, 0, out))
    unseen = find_graphs(tree, collections=(collection,), splits=("valid",))[0]
    return MODELS[name].load(out, recipe), read_layout(unseen)


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("name", LAYOUT_MODELS)
def test_models_train_and_rank_under_every_rule(
    name: str, rule: str, tiny_tree: Path, tmp_path: Path
) -> None:
    ranker, graph = train(name, rule, tiny_tree, tmp_path)
    scores = ranker.score(graph)
    assert scores.shape == (graph.n_configs,)
    assert np.isfinite(scores).all()
    assert scores.std() > 0
    rng = np.random.default_rng(0)
    relabelled = ranker.score(relabel_nodes(graph, rng.permutation(graph.n_nodes)))
    np.testing.assert_allclose(relabelled, scores, atol=1e-4 * np.abs(scores).max())
    order = rng.permutation(graph.n_configs)
    moved = ranker.score(permute_configs(graph, order))
    np.testing.assert_allclose(moved, scores[order], atol=1e-4 * np.abs(scores).max())


@pytest.mark.parametrize("rule", ALL_RULES)
def test_inputs_hold_one_row_per_pruned_node(rule: str, layout_graph: LayoutGraph) -> None:
    scaler = fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")
    inputs = layout_inputs(layout_graph, rule=rule, scaler=scaler)
    n_pruned = len(inputs.opcode)
    assert inputs.node_feat.shape == (n_pruned, 140)
    assert inputs.node_feat.isfinite().all()
    assert inputs.layout.shape == (n_pruned, 6)
    assert set(inputs.layout.unique().tolist()) <= set(range(N_SYMBOLS))
    opcode = layout_graph.node_opcode[layout_graph.node_config_ids]
    np.testing.assert_array_equal(inputs.opcode[inputs.config_ids].numpy(), opcode)
    own = scaler(layout_graph.node_feat[layout_graph.node_config_ids])
    configurable = inputs.node_feat[inputs.config_ids].numpy()
    np.testing.assert_array_equal(configurable[:, :134], own[:, :134])
    assert not configurable[:, 134:].any()


def test_networks_read_the_padding_that_the_recipe_names(tiny_tree: Path, tmp_path: Path) -> None:
    for name in [name for name in LAYOUT_MODELS if name.endswith(("_sage", "_gcn"))]:
        _, graph = train(name, "hops-1", tiny_tree, tmp_path / name)
        restored, stock = (
            MODELS[name].load(
                tmp_path / name, load_recipe("smoke", ["features.prune=hops-1", SEGMENT, key])
            )
            for key in ("features.padding=minus-one", "features.padding=zero")
        )
        assert not np.allclose(restored.score(graph), stock.score(graph)), name
