"""Several graphs in one pass, next to the graphs alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from data.graph_store.stored_graph import read_layout
from data.tree import GraphFile, collection_named, find_graphs
from features.scaling import NodeScaler
from models.config.networks import CrossConfigSageConfig, TgraphConfig
from models.config.recipe import Recipe
from models.layout import network
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, layout_inputs
from models.layout.joined_graphs import JoinedGraphs, join_graphs
from models.layout.network import LayoutNetwork, joined_losses, sample_loss
from models.layout.tgraph import Tgraph
from models.registry import TrainJob
from models.run_folder import METRICS
from models.train import train_model
from models.training.device import GPU
from models.training.loop import WEIGHTS

NETWORKS: dict[str, Callable[[], LayoutNetwork]] = {
    "cross_config_sage": lambda: CrossConfigSage(
        CrossConfigSageConfig(hidden=16, statistics=True, pool_by_bytes=True, loss="list_mle")
    ),
    "tgraph": lambda: Tgraph(TgraphConfig(hidden=16, dropout=0)),
}


@pytest.fixture
def samples(tiny_tree: Path, scaler: NodeScaler) -> list[network.Sample]:
    """Return three graphs of other sizes, the last one with fewer configs."""
    files = [
        file
        for name in ("layout:xla:random", "layout:nlp:random")
        for file in find_graphs(tiny_tree, collections=(collection_named(name),), splits=("train",))
    ]
    graphs = [
        layout_inputs(read_layout(file), rule="hops-1", scaler=scaler, with_statistics=True)
        for file in files[:3]
    ]
    assert len({len(graph.opcode) for graph in graphs}) == 3
    rng = np.random.default_rng(0)
    sizes = 12, 12, 7
    return [
        (graph, rng.permutation(len(graph.first))[:size])
        for graph, size in zip(graphs, sizes, strict=True)
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_joined_step_has_the_mean_gradient_of_its_graphs(
    name: str, samples: list[network.Sample]
) -> None:
    torch.manual_seed(0)
    model = NETWORKS[name]()
    parameters = dict(model.named_parameters())
    alone = [sample_loss(model, *sample) for sample in samples]
    joined = joined_losses(model, samples)
    torch.testing.assert_close(joined, torch.stack(alone), atol=1e-6, rtol=1e-5)
    expected = [torch.autograd.grad(loss, list(parameters.values())) for loss in alone]
    means = [torch.stack(gradients).mean(0) for gradients in zip(*expected, strict=True)]
    largest = max(float(gradient.abs().max()) for gradient in means)
    found = torch.autograd.grad(joined.mean(), list(parameters.values()))
    for gradient, mean in zip(found, means, strict=True):
        torch.testing.assert_close(gradient, mean, atol=1e-6 * largest, rtol=1e-4)


def test_a_joined_training_resumes_to_the_same_bytes(
    layout_files: list[GraphFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    def joined(graphs: Sequence[LayoutInputs]) -> JoinedGraphs:
        passes.append(len(graphs))
        # The first training has 4 steps. The second one is stopped in its third step.
        if len(passes) == 7:
            raise RuntimeError("stopped")
        return join_graphs(graphs)

    monkeypatch.setattr(network, "join_graphs", joined)
    monkeypatch.setattr(network, "device_of", lambda _: GPU)
    training = {"steps": 4, "warmup_steps": 1, "checkpoint_every": 2}
    table = {"hidden": 16, "configs_per_step": 16, "graphs_per_step": 2, "dropout": 0.2}
    recipe = Recipe.from_table(
        {"cross_config_sage": {**table, "training": training}}, source="two graphs per step"
    )
    whole, stopped = (
        TrainJob("cross_config_sage", recipe, layout_files, 0, tmp_path / name)
        for name in ("whole", "stopped")
    )
    train_model(whole, layout_files[0].collection, resume=False)
    with pytest.raises(RuntimeError, match="stopped"):
        train_model(stopped, layout_files[0].collection, resume=False)
    train_model(stopped, layout_files[0].collection, resume=True)
    assert passes == [2] * 9
    for name in (METRICS, WEIGHTS):
        assert (whole.run_dir / name).read_bytes() == (stopped.run_dir / name).read_bytes()
