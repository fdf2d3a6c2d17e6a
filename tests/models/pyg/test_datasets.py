"""Datasets: indexing, splits, scaling, and that worker processes give what this one does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.loader import DataLoader

from common.errors import PipelineError
from common.settings import ROOT
from data.graphs.node_columns import MINOR_TO_MAJOR
from models.pyg import ConfigSampler, TpuGraphsLayout, TpuGraphsTile

KEYS = ("x", "edge_index", "config_node_ids", "config_feat", "runtime")


def names(dataset: TpuGraphsTile) -> list[str]:
    return [f"{graph.collection}:{graph.name}" for graph in dataset]


def test_it_is_indexed_as_pygs_datasets_are(tiny_tree: Path) -> None:
    dataset = TpuGraphsLayout(tiny_tree, "train")
    every = names(dataset)
    assert every == [file.submission_id for file in dataset.files]
    mask = torch.zeros(len(every), dtype=torch.bool)
    mask[[0, 2]] = True
    assert names(dataset[mask]) == names(dataset[[0, 2]]) == names(dataset[0:3:2])
    assert names(dataset[[0, 2]]) == [every[0], every[2]]
    assert dataset[-1].name == dataset.files[-1].name
    assert dataset.num_node_features == 140
    graph = dataset[0]
    del graph.x  # what is kept stays
    assert dataset[0].x is not None


def test_splits_and_collections(tiny_tree: Path) -> None:
    one = TpuGraphsLayout(tiny_tree, "test", collections="layout:nlp:random")
    assert {graph.collection for graph in one} == {"layout:nlp:random"}
    assert not any(graph.configs.runtime.any() for graph in one)
    assert {graph.collection for graph in TpuGraphsTile(tiny_tree, "valid")} == {"tile:xla"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"split": "dev"}, "split 'dev': expected one of train, valid, test"),
        ({"collections": "tile:xla"}, "'tile:xla': expected those of layout configs alone"),
        ({"collections": "layouts"}, "no such collection"),
        ({"scaling": "sqrt"}, "scaling 'sqrt': expected none, log1p"),
        (
            {"split": "valid", "scaling": "log1p-standardise"},
            r"learned from train graphs; expected",
        ),
        ({"prune": "sqrt"}, "sqrt"),
        ({"root": ROOT / "docs"}, "holds no npz"),
    ],
)
def test_what_is_not_known_is_refused(options: dict, told: str, tiny_tree: Path) -> None:
    with pytest.raises(PipelineError, match=told):
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
        drawn = [(batch, torch.from_numpy(np.stack(batch.config_rows))) for batch in loader]
        found.append([{k: b[k].clone() for k in KEYS} | {"config_rows": r} for b, r in drawn])
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
            assert all(torch.equal(batch[key], same[key]) for key in batch)
    rows = [torch.cat([batch["config_rows"] for batch in epoch]) for epoch in alone]
    assert not torch.equal(rows[0], rows[1])
