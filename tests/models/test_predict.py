"""Graphs are read once for all rankers, ahead of the work, and whole or in part."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import PipelineError
from data.graph_store.stored_graph import read_graph
from data.tree import GraphFile, find_graphs
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig
from models.config.recipe import load_recipe
from models.graph_task import NetworkRanker
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.predict import read_ahead, sampled, scores_table
from models.registry import TrainJob
from models.train import train_model
from models.trees.baseline import BASELINES


def network(seed: int, scaler: NodeScaler) -> NetworkRanker:
    torch.manual_seed(seed)
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16))
    return NetworkRanker(model, partial(layout_inputs, rule="none", scaler=scaler), 1)


def test_networks_that_read_alike_share_what_they_read(
    layout_files: list[GraphFile], scaler: NodeScaler
) -> None:
    copied = replace(scaler, shift=scaler.shift.copy())
    other = replace(copied, shift=copied.shift + 1)
    rankers = [network(0, scaler), network(1, copied), network(2, other), network(3, scaler)]
    graph = read_graph(layout_files[0])
    together = [ranker.score(graph) for ranker in rankers]
    assert sum(isinstance(made, LayoutInputs) for made in graph.cache.values()) == 2
    alone = [ranker.score(read_graph(layout_files[0])) for ranker in rankers]
    assert all((a == b).all() for a, b in zip(together, alone, strict=True))
    assert not replace(graph).cache  # another graph, other configs perhaps


def test_of_graphs_with_many_configs_a_sample_is_ranked(
    layout_files: list[GraphFile], tiny_tree: Path
) -> None:
    tiles = [f for f in find_graphs(tiny_tree, splits=("train",)) if f.collection.kind == "tile"]
    most = max(read_graph(file).n_configs for file in layout_files)
    subsets = sampled([*layout_files[1:], *tiles], most - 1)
    assert {*map(len, subsets.values())} == {most - 1}
    assert {*subsets} < {file.submission_id for file in layout_files}
    graphs = list(read_ahead(layout_files, subsets))
    assert [graph.file for graph in graphs] == layout_files
    for file, graph in zip(layout_files, graphs, strict=True):
        whole = read_graph(file)
        rows = subsets.get(file.submission_id, np.arange(whole.n_configs))
        own = scores_table(graph, BASELINES["layout"].score(graph))
        assert own["config"].to_list() == rows.tolist()
        kept = scores_table(whole, BASELINES["layout"].score(whole))[rows.tolist()]
        assert own.select("config", "config_hash").equals(kept.select("config", "config_hash"))


def test_the_next_graph_is_read_beside_the_work_and_no_more(
    layout_files: list[GraphFile], tmp_path: Path
) -> None:
    missing = [replace(file, path=tmp_path / f"{file.name}.npz") for file in layout_files]
    graphs = read_ahead([layout_files[0], missing[0], layout_files[1]])
    assert next(graphs).file == layout_files[0]
    with pytest.raises(PipelineError, match=missing[0].name):
        next(graphs)
    assert list(read_ahead([])) == []


class FullNetwork(CrossConfigSage):
    """Takes more memory than there is, to train as well as to rank."""

    def forward(self, *_: object) -> torch.Tensor:  # type: ignore[override]
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB. Process 7 has 13.5 GiB.")


def test_a_full_gpu_is_a_one_line_error(
    layout_files: list[GraphFile], scaler: NodeScaler, tmp_path: Path
) -> None:
    model = FullNetwork(CrossConfigSageConfig(inference_tensor_mib=64))
    ranker = NetworkRanker(model, partial(layout_inputs, rule="none", scaler=scaler), 1)
    with pytest.raises(PipelineError, match=r"rank by FullNetwork: .*inference_tensor_mib"):
        ranker.score(read_graph(layout_files[0]))
    recipe = load_recipe("smoke", ["layout.models=[tests.models.test_predict:FullNetwork]"])
    job = TrainJob("test_predict", recipe, layout_files[:1], 0, tmp_path / "model")
    with pytest.raises(PipelineError) as raised:
        train_model(job, layout_files[0].collection, resume=False)
    assert str(raised.value) == (
        "train test_predict: out of GPU memory: CUDA out of memory. Tried 2 GiB; halve one of "
        "test_predict.configs_per_step (now 64), test_predict.hidden (now 64)"
    )
