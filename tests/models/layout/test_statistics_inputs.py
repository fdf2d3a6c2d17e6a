"""Hand-crafted statistics as inputs of the layout GNN."""

from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UsageError
from data.graphs.graph import LayoutGraph
from features.scaling import fit_node_scaler
from features.statistics.configs import N_CONFIG_STATISTICS, centred_statistics, statistics_of
from models.config.networks import CrossConfigSageConfig
from models.config.recipe import load_recipe
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.registry import MODELS
from models.training.jobs import TrainJob
from models.training.weights import load_tensors


@pytest.fixture
def inputs(layout_graph: LayoutGraph) -> LayoutInputs:
    scaler = fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")
    return layout_inputs(layout_graph, rule="hops-1", scaler=scaler, with_statistics=True)


def test_they_are_what_tells_the_configs_of_a_graph_apart(layout_graph: LayoutGraph) -> None:
    rows = np.arange(layout_graph.n_configs)
    statistics = statistics_of(layout_graph, "plain")(rows)
    centred = centred_statistics(layout_graph, rows)
    assert centred.shape == (len(rows), N_CONFIG_STATISTICS)
    np.testing.assert_allclose(centred.mean(axis=0), 0, atol=1e-5)
    same_for_all = np.ptp(statistics, axis=0)[N_CONFIG_STATISTICS:]
    assert not same_for_all.any()
    np.testing.assert_allclose(
        centred[1] - centred[0], (statistics[1] - statistics[0])[:N_CONFIG_STATISTICS], atol=1e-5
    )


def test_scores_depend_on_them_and_not_on_chunks(inputs: LayoutInputs) -> None:
    torch.manual_seed(0)
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16, statistics=True)).eval()
    whole = model.score_all(inputs, chunk_configs=10_000)
    np.testing.assert_allclose(model.score_all(inputs, chunk_configs=7), whole, atol=1e-5)
    model.set_statistics_scale(np.full(N_CONFIG_STATISTICS, 0.1, np.float32))
    other = model.score_all(inputs, chunk_configs=10_000)
    assert np.abs(other - whole).max() > 1e-3


def test_training_learns_and_keeps_their_scale(layout_graph: LayoutGraph, tmp_path: Path) -> None:
    recipe = load_recipe("smoke", ["cross_config_sage.statistics=true"])
    MODELS["cross_config_sage"].train(
        TrainJob("cross_config_sage", recipe, [layout_graph.file], 0, tmp_path)
    )
    tensors, _ = load_tensors(tmp_path / "model.safetensors")
    scale = tensors["model.statistics_scale"].numpy()
    first = np.unique(layout_graph.configs.content_hashes(), return_index=True)[1]
    expected = np.sqrt(np.square(centred_statistics(layout_graph, first)).mean(axis=0))
    np.testing.assert_allclose(scale, np.where(expected > 0, expected, 1), rtol=1e-4)
    ranker = MODELS["cross_config_sage"].load(tmp_path, recipe)
    assert np.isfinite(ranker.score(layout_graph)).all()


@pytest.mark.parametrize("model", ["baseline_gcn", "tgraph", "segment_sage"])
def test_networks_that_read_none_refuse_them(model: str) -> None:
    with pytest.raises(UsageError, match=f"{model}.statistics.*reads no statistics"):
        load_recipe("smoke", [f"{model}.statistics=true"])
