"""Which graphs teach an order, and the file of withheld runtimes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.graphs.graph import LayoutGraph
from data.labels import WITHHELD, Labels, read_withheld, split_usable, why_unusable, write_withheld
from data.tree import collection_named, find_graphs
from tests.data.npz.damaged_archives import npy, packed

TILE, LAYOUT = "tile:xla:" + "a" * 32, "layout:nlp:random:" + "b" * 32
XLA_RANDOM = collection_named("layout:xla:random")
LABELS = {
    TILE: Labels(np.array([5, 9], np.int64), np.array([5, 5], np.int64)),
    LAYOUT: Labels(np.array([2**40, 7, 8], np.int64)),
}


def test_written_labels_are_read(tmp_path: Path) -> None:
    write_withheld(tmp_path / WITHHELD, dict(reversed(LABELS.items())))
    found = read_withheld(tmp_path)
    assert found.keys() == LABELS.keys()
    for name, labels in LABELS.items():
        np.testing.assert_array_equal(found[name].runtime_ns, labels.runtime_ns, strict=True)
        np.testing.assert_array_equal(found[name].runtime, labels.runtime, strict=True)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"test_runtimes\.npz: no such file"):
        read_withheld(tmp_path)


def test_other_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / WITHHELD
    path.parent.mkdir()
    arrays = (np.full(3, 0.5), np.zeros((2, 2), np.int64), np.array([{"a": 1}], object))
    contents = [packed([(f"{LAYOUT}.npy", npy(values))]) for values in arrays]
    for content in (b"", b"not an archive", contents[0][:-9], *contents):
        path.write_bytes(content)
        with pytest.raises(PipelineError, match=r"not a whole npz file|key .*; expected") as raised:
            read_withheld(tmp_path)
        assert str(raised.value).startswith(f"{path}: ")


def test_withheld_and_single_config_graphs_are_unusable(
    layout_graph: LayoutGraph, tiny_tree: Path
) -> None:
    layout_files = find_graphs(tiny_tree, collections=(XLA_RANDOM,), splits=("train",))
    withheld = find_graphs(tiny_tree, collections=(XLA_RANDOM,), splits=("test",))
    usable, unusable = split_usable([*layout_files, *withheld])
    assert usable == layout_files
    assert unusable == [(file, "runtimes are withheld") for file in withheld]
    same = layout_graph.only(np.zeros(5, np.int64))
    assert why_unusable(same) == "only one distinct config, measured 5 times"
    noisy = replace(layout_graph.only(np.array([0, 0, 1])), runtime_ns=np.array([4, 6, 5]))
    assert why_unusable(noisy) == "all configs have the same runtime"  # in the mean
    same = replace(layout_graph, runtime_ns=np.full(layout_graph.n_configs, 7))
    assert why_unusable(same) == "all configs have the same runtime"
