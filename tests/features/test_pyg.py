"""PyG graphs have the values of their npz files, also in batches, splits and data loaders."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

from common.errors import PipelineError, UsageError
from common.settings import ROOT
from data.graphs.graph import LayoutGraph, distinct_configs
from data.graphs.node_columns import MINOR_TO_MAJOR
from data.graphs.packing import Codebooks, PackedConfigs
from data.tree import find_graphs
from examples.gat import GatNet
from features.pyg import ConfigSampler, TpuGraph, TpuGraphsLayout, TpuGraphsTile, tpu_graph
from features.scaling import fit_node_scaler
from models.layout.inputs import layout_inputs
from models.training.losses import pairwise_hinge

DATASETS = {"layout": TpuGraphsLayout, "tile": TpuGraphsTile}


@pytest.mark.parametrize("kind", DATASETS)
def test_it_holds_what_the_file_does(kind: str, tiny_tree: Path) -> None:
    dataset = DATASETS[kind](tiny_tree, "train")
    sources = [f for f in find_graphs(tiny_tree, splits=("train",)) if f.collection.kind == kind]
    assert len(dataset) == len(sources) > 1
    for graph, source in zip(dataset, sources, strict=True):
        assert (graph.name, graph.collection) == (source.name, source.collection.name)
        rows = np.random.default_rng(0).permutation(len(graph.configs))[:5]
        stored, taken = np.load(source.path), graph.take(rows)
        runtime = stored["config_runtime"].astype(float)
        if kind == "layout":
            np.testing.assert_array_equal(graph.config_node_ids, stored["node_config_ids"])
            config_feat = stored["node_config_feat"][rows].transpose(1, 0, 2).astype(np.int8)
        else:
            runtime = runtime / stored["config_runtime_normalizers"]
            config_feat = stored["config_feat"][None, rows]
        for values, expected in (
            (graph.x, stored["node_feat"]),
            (graph.opcode, stored["node_opcode"]),
            (graph.edge_index, stored["edge_index"][:, ::-1].T),
            (graph.configs.runtime, runtime),
            (taken.runtime, runtime[None, rows]),
            (taken.config_rows, rows),
        ):
            np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(taken.config_feat, config_feat, strict=True)


def test_graph_without_configs_says_how_to_take_some(tiny_tree: Path) -> None:
    graph = TpuGraphsLayout(tiny_tree, "train")[0]
    assert f"configs=ConfigTable({len(graph.configs)} configs)" in repr(graph).split("\n")[-1]
    with pytest.raises(AttributeError, match=r"no config_feat; take configs first: graph\.take"):
        GatNet()(graph)
    assert graph.take([0]).config_feat.shape[1] == 1


def test_a_batch_scores_as_its_graphs_do(tiny_tree: Path) -> None:
    dataset = TpuGraphsLayout(
        tiny_tree, "train", transform=ConfigSampler(7, seed=0), prune="hops-1"
    )
    graphs = list(dataset)[:4]
    assert len({graph.num_nodes for graph in graphs}) > 1
    batch = Batch.from_data_list(graphs, follow_batch=["config_node_ids"])
    nodes = [graph.num_nodes for graph in graphs]
    starts = np.cumsum(nodes) - nodes
    ids = torch.cat([g.config_node_ids + s for g, s in zip(graphs, starts, strict=True)])
    assert torch.equal(batch.config_node_ids, ids)
    assert torch.equal(batch.batch[ids], batch.config_node_ids_batch)
    assert batch.runtime.shape == np.stack(batch.config_rows).shape == (4, 7)
    assert np.array_equal(batch[2].config_rows, graphs[2].config_rows)
    assert batch.name == [graph.name for graph in graphs]
    torch.manual_seed(0)
    net = GatNet(8, 2).eval()
    alone = torch.cat([net(graph) for graph in graphs])
    torch.testing.assert_close(net(batch), alone, atol=1e-5, rtol=1e-5)
    assert torch.equal(batch[2].config_node_ids, graphs[2].config_node_ids)


def test_a_recipes_network_is_given_the_same(layout_graph: LayoutGraph) -> None:
    scaler = fit_node_scaler([layout_graph.node_feat], scaling="log1p-standardise")
    inputs = layout_inputs(layout_graph, rule="hops-1", scaler=scaler)
    distinct = np.array([3, 0, 4])
    given = inputs.as_pyg(distinct)
    own = tpu_graph(layout_graph, prune="hops-1", scaler=scaler)
    first, _ = distinct_configs(layout_graph)
    own = own.take(first[distinct])
    for key in list(given.to_dict()):
        np.testing.assert_array_equal(given[key], own[key], err_msg=key)
    assert set(own.keys()) - set(given.keys()) == {"name", "collection", "config_rows", "runtime"}


def test_impossible_rows_and_samples_are_refused(layout_graph: LayoutGraph) -> None:
    for rows in ([], [-1], [10**6], [[0]], [True, False], [0.5]):
        with pytest.raises(UsageError, match=r"expected one or more rows from 0 to .* or a mask"):
            tpu_graph(layout_graph).take(rows)
    with pytest.raises(UsageError, match=r"ConfigSampler: 0 configs; expected at least 1"):
        ConfigSampler(0)
    with pytest.raises(UsageError, match="were taken already"):
        tpu_graph(layout_graph).take([0]).take([0])


def test_a_graph_of_many_configs_is_never_unpacked_whole(layout_graph: LayoutGraph) -> None:
    n_configs, n_nodes, n_vectors = 70_000, 3_142, 8  # 3.7 GiB if unpacked
    rng = np.random.default_rng(0)
    vectors = np.tile(np.arange(n_vectors), (4, 1))  # four columns, to which the nodes are tied
    codebooks = Codebooks(
        np.arange(n_vectors), np.arange(n_nodes) % 4, vectors, np.full(4, n_vectors)
    )
    indices = rng.integers(n_vectors, size=(n_configs, 4)).astype(np.uint8)
    graph = replace(
        layout_graph,
        node_feat=np.zeros((n_nodes, 140), np.float32),
        node_opcode=np.zeros(n_nodes, np.uint8),
        node_config_ids=np.arange(n_nodes),
        configs=PackedConfigs(codebooks, indices),
        runtime_ns=rng.integers(1, 9, n_configs),
    )
    sampler = ConfigSampler(64, seed=0)
    tracemalloc.start()
    taken = sampler(tpu_graph(graph))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken.config_feat.shape == (n_nodes, 64, 18)
    assert peak < 48 << 20


@pytest.fixture
def measured(layout_graph: LayoutGraph) -> TpuGraph:
    """A graph whose first config was measured three times."""
    rows = np.r_[0, 0, 0, 1 : layout_graph.n_configs]
    twice = layout_graph.only(rows)
    twice.runtime_ns[:3] = 10, 20, 60
    return tpu_graph(twice)


def test_distinct_configs_come_once_with_their_mean_or_all_measurements(measured: TpuGraph) -> None:
    n_distinct = len(measured.configs.first)
    taken = ConfigSampler(n_distinct, seed=0)(measured)
    assert "configs" in measured and "config_feat" not in measured  # it stays as it is
    rows = taken.config_rows
    assert sorted(rows.tolist()) == measured.configs.first.tolist()
    assert taken.runtime[0, rows == 0] == 30
    assert torch.equal(taken.config_feat, measured.take(rows).config_feat)
    taken = ConfigSampler(len(measured.configs), seed=0, distinct=False)(measured)
    rows = taken.config_rows
    assert sorted(rows.tolist()) == list(range(len(measured.configs)))
    assert sorted(taken.runtime[0, rows < 3].tolist()) == [10, 20, 60]


def test_too_few_configs_are_filled_up_with_what_no_loss_counts(measured: TpuGraph) -> None:
    n_distinct = len(measured.configs.first)
    taken = ConfigSampler(n_distinct + 4, seed=0)(measured)
    assert taken.config_feat.shape[1] == n_distinct + 4
    assert torch.isinf(taken.runtime[0]).tolist() == [False] * n_distinct + [True] * 4
    scores = torch.randn(1, n_distinct + 4)
    whole = pairwise_hinge(scores, taken.runtime)
    torch.testing.assert_close(whole, pairwise_hinge(scores[:, :-4], taken.runtime[:, :-4]))


def test_a_seed_an_epoch_and_a_graph_decide(measured: TpuGraph) -> None:
    def sample(seed: int, epoch: int = 0, name: str = "a") -> list[int]:
        sampler = ConfigSampler(8, seed=seed)
        sampler.set_epoch(epoch)
        measured.name = name
        torch.rand(1)  # torch's generator has no say
        return sampler(measured).config_rows.tolist()

    assert sample(0) == sample(0)
    others = (sample(1), sample(0, 1), sample(0, 0, "b"))
    assert len({tuple(rows) for rows in (sample(0), *others)}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "split 'dev': expected one of train, valid, test"),
        ({"collections": "tile:xla"}, "'tile:xla': expected those of layout configs alone"),
        ({"collections": "layouts"}, "no such collection"),
        ({"scaling": "sqrt"}, "scaling 'sqrt' of split train: expected one of log1p"),
        ({"split": "valid", "scaling": "log1p"}, "of split valid: .*scaling=train.scaler"),
        ({"prune": "sqrt"}, "sqrt"),
        ({"root": ROOT / "docs"}, "contains no npz"),
    ],
)
def test_unknown_options_are_refused(options: dict, message: str, tiny_tree: Path) -> None:
    with pytest.raises(PipelineError, match=message):
        TpuGraphsLayout(**{"root": tiny_tree, **options})


def test_scaling_is_learned_from_train_and_given_to_valid(tiny_tree: Path) -> None:
    train = TpuGraphsLayout(tiny_tree, "train", scaling="log1p-standardise")
    valid = TpuGraphsLayout(tiny_tree, "valid", scaling=train.scaler)
    every = torch.cat([graph.x for graph in train])
    assert every.abs().max() <= 10
    assert not every[:, MINOR_TO_MAJOR].any()
    stock = TpuGraphsLayout(tiny_tree, "valid")[0].x.numpy()
    expected = valid.scaler(stock)
    expected[:, MINOR_TO_MAJOR] = 0
    np.testing.assert_array_equal(valid[0].x, expected)


def two_epochs(dataset: TpuGraphsLayout, workers: int, **options: object) -> list:
    sampler = ConfigSampler(6, seed=3)
    dataset.transform = sampler
    loader = DataLoader(dataset, batch_size=2, num_workers=workers, **options)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        found.append([batch.clone() for batch in loader])
    return found


@pytest.mark.parametrize(
    "context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)], ids=str
)
def test_workers_give_what_this_process_does(context: str, tiny_tree: Path) -> None:
    dataset = TpuGraphsLayout(tiny_tree, "train")[:4]
    alone = two_epochs(dataset, 0)
    many = two_epochs(dataset, 2, multiprocessing_context=context, persistent_workers=True)
    for epoch, again in zip(alone, many, strict=True):
        for batch, same in zip(epoch, again, strict=True):
            for key in ("x", "edge_index", "config_node_ids", "config_feat", "runtime"):
                assert torch.equal(batch[key], same[key])
            assert np.array_equal(batch.config_rows, same.config_rows)
    rows = [np.concatenate([batch.config_rows for batch in epoch]) for epoch in alone]
    assert not np.array_equal(*rows)
