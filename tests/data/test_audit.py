"""An audit names every bad file and counts every good one."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.audit import AuditRow, as_dict, audit, summary
from data.graph import LayoutGraph
from data.read import read_graph
from data.tree import GraphFile, collection_named, find_graphs
from tests.data.damaged_archives import read_arrays, repacked
from tests.real_data import REAL, real_file, requires_real_data


def test_good_files_are_counted(tiny_tree: Path) -> None:
    files = find_graphs(tiny_tree)
    told = []
    rows = audit(files, progress=lambda *told_of: told.append(told_of))
    assert [row.file for row in rows] == files
    assert told == [("audit", i + 1, len(files)) for i in range(len(files))]
    for row in rows:
        graph = read_graph(row.file)
        assert row.error is None
        assert (row.n_nodes, row.n_edges) == (graph.n_nodes, len(graph.edge_index))
        assert row.n_configs == graph.n_configs
        assert row.is_labelled == (row.file.split != "test")
        if isinstance(graph, LayoutGraph):
            values = graph.configs.rows(np.arange(graph.n_configs)).reshape(graph.n_configs, -1)
            assert row.n_configurable == len(graph.node_config_ids)
        else:
            values = graph.config_feat
            assert row.n_configurable == 0
        assert row.n_distinct == len(np.unique(values, axis=0))


def test_all_bad_files_are_listed_and_the_good_ones_still_counted(
    tiny_tree: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_tree, tmp_path / "tree")
    files = find_graphs(tmp_path / "tree")
    files[1].path.write_bytes(b"no archive")
    files[-1].path.write_bytes(files[-1].path.read_bytes()[:-40])
    files[3].path.unlink()
    rows = audit(files)
    bad = [place for place, row in enumerate(rows) if row.error]
    assert bad == [1, 3, len(files) - 1]
    for place in bad:
        assert str(rows[place].error).startswith(f"{files[place].path}: ")
        assert rows[place].n_configs == 0
    header, lines = summary(rows)
    table = [dict(zip(header, line, strict=True)) for line in lines]
    assert sum(line["bad"] for line in table) == 3
    assert sum(line["files"] for line in table) == len(files)
    assert sum(line["configs"] for line in table) == sum(row.n_configs for row in rows)


def test_a_stem_twice_is_an_error_of_the_second_file(tiny_tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_tree, tmp_path / "tree")
    train = find_graphs(tmp_path / "tree", splits=("train",))[0]
    twin = train.path.parent.parent / "valid" / train.path.name
    shutil.copy(train.path, twin)
    bad = [row for row in audit(find_graphs(tmp_path / "tree")) if row.error]
    assert [row.file.path for row in bad] == [twin]
    assert str(train.path) in str(bad[0].error)


def altered(graph: LayoutGraph, folder: Path, **changes: np.ndarray) -> GraphFile:
    path = folder / "altered.npz"
    path.write_bytes(repacked(read_arrays(graph.file.path.read_bytes()), **changes))
    return replace(graph.file, path=path)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (lambda g: {"config_runtime": 0 * g.runtime_ns}, "runtimes are withheld"),
        (lambda g: {"config_runtime": 0 * g.runtime_ns + 7}, "all configs have the same runtime"),
        (lambda g: {"edge_index": g.edge_index[:, ::-1]}, "nodes are not in topological order"),
        (
            lambda g: {
                "node_config_feat": np.repeat(
                    g.configs.rows(np.zeros(1, np.int64)), g.n_configs, axis=0
                ).astype(np.float32)
            },
            "one config measured 40 times",
        ),
    ],
)
def test_odd_files_carry_a_note(
    layout_graph: LayoutGraph, tmp_path: Path, changes, note: str
) -> None:
    (row,) = audit([altered(layout_graph, tmp_path, **changes(layout_graph))])
    assert (row.error, row.notes) == (None, (note,))


def test_a_file_without_oddities_carries_no_note(layout_graph: LayoutGraph) -> None:
    (row,) = audit([layout_graph.file])
    assert row.notes == ()


def test_a_row_can_be_written_as_json(tmp_path: Path) -> None:
    file = GraphFile(collection_named("tile:xla"), "train", "k", tmp_path / "k.npz")
    row = AuditRow(file, notes=("odd",), n_nodes=2, n_configs=3, is_labelled=True)
    read_back = json.loads(json.dumps(as_dict(row)))
    assert read_back["id"] == "tile:xla:k"
    assert read_back["path"] == str(tmp_path / "k.npz")
    assert (read_back["n_nodes"], read_back["n_configs"], read_back["notes"]) == (2, 3, ["odd"])


@requires_real_data
def test_real_files_are_all_good_and_the_noise_file_is_noted() -> None:
    noise = real_file("layout:xla:random:openai_v0_rnn_optimized")
    rows = {row.file: row for row in audit(find_graphs(REAL))}
    assert [row.error for row in rows.values() if row.error] == []
    assert rows[noise].notes == ("one config measured 20 times",)
