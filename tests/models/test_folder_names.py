"""Models, tables and the store work in a folder whose name is no UTF-8.

A library that gets a path as text encodes it in its own way; so none gets one. A locale in another
encoding shows the same fault, but is not there on every machine.
"""

import os
from pathlib import Path

import lightgbm
import numpy as np
import polars as pl
import pytest
import torch

from common.files import read_table, table_facts, write_table
from data.graph_store.stored_graph import read_graph, store_graph, stored_file
from data.tree import find_graphs
from features.statistics.configs import write_statistics
from models.training.loop import load_tensors, save_tensors
from models.trees.boosting import read_booster, read_importances, write_boosters


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / os.fsdecode(b"\xca\xfd\xbe\xdd")
    try:
        found.mkdir()
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    return found


def test_tables(folder: Path, tiny_tree: Path) -> None:
    table = pl.DataFrame({"score": [1.0, 2.0]})
    write_table(folder / "a.parquet", table, what="a test")
    assert read_table(folder / "a.parquet").equals(table)
    assert table_facts(folder / "a.parquet")["what"] == "a test"
    (written,) = write_statistics(find_graphs(tiny_tree)[:1], folder)
    assert pl.read_parquet(written.read_bytes()).height > 1


def test_networks_and_the_store(folder: Path, tiny_tree: Path) -> None:
    save_tensors(folder / "a", {"weight": torch.ones(3)}, {"step": 1})
    tensors, facts = load_tensors(folder / "a")
    assert tensors["weight"].tolist() == [1, 1, 1] and facts == {"step": 1}
    source = find_graphs(tiny_tree)[0]
    stored = stored_file(folder, source)
    store_graph(source, stored)
    assert read_graph(stored).n_configs == read_graph(source).n_configs


def test_boosters(folder: Path) -> None:
    rows = np.arange(80.0).reshape(40, 2)
    data = lightgbm.Dataset(rows, rows[:, 0], feature_name=["one", "two"])
    booster = lightgbm.train({"verbose": -1, "min_data_in_leaf": 1}, data, num_boost_round=2)
    write_boosters({"booster.txt": booster}, folder)
    again = read_booster(folder / "booster.txt", ["one", "two"])
    assert np.array_equal(again.predict(rows), booster.predict(rows))
    assert read_importances([folder]) is not None
