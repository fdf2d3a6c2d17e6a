"""An audit names every bad file and counts every good one."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from common.progress import watched_by
from data.audit import as_dict, audit, totals
from data.graph_store.prepare import prepare
from data.graphs.distinct import distinct_configs
from data.graphs.graph import LayoutGraph
from data.read import read_graph
from data.tree import GraphFile, find_graphs
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.real_data import REAL, real_file, requires_real_data


def test_good_files_are_counted(tiny_tree: Path) -> None:
    files = find_graphs(tiny_tree)
    told = []
    with watched_by(lambda *told_of: told.append(told_of)):
        rows = audit(files)
    assert [row.file for row in rows] == files
    assert told == [("audit 28 files", i, 28) for i in range(28 + 1)]
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
    """A name that stands in two splits is an error of the second file."""
    shutil.copytree(tiny_tree, tmp_path / "tree")
    train = find_graphs(tmp_path / "tree", splits=("train",))[0].path
    twin = Path(shutil.copy(train, train.parent.parent / "valid"))
    files = find_graphs(tmp_path / "tree")
    files[1].path.write_bytes(b"no archive")
    files[-1].path.write_bytes(files[-1].path.read_bytes()[:-40])
    files[3].path.unlink()
    rows = audit(files)
    bad = [row for row in rows if row.error]
    assert {row.file.path for row in bad} == {twin, *(files[i].path for i in (1, 3, -1))}
    for row in bad:
        assert str(row.error).startswith(f"{row.file.path}: ") and row.n_configs == 0
        assert (str(train) in str(row.error)) is (row.file.path == twin)
    table = totals(rows)
    assert sum(line["n_bad"] for line in table) == 4
    assert sum(line["n_files"] for line in table) == len(files)
    assert sum(line["n_configs"] for line in table) == sum(row.n_configs for row in rows)


def rows_of(graph: LayoutGraph, rows: Sequence[int]) -> np.ndarray:
    return graph.configs.rows(np.array(rows)).astype(np.float32)


def altered(graph: LayoutGraph, folder: Path, **changes: np.ndarray) -> GraphFile:
    path = folder / "altered.npz"
    path.write_bytes(repacked(read_arrays(graph.file.path.read_bytes()), **changes))
    return replace(graph.file, path=path)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (lambda g: {}, None),
        (lambda g: {"config_runtime": 0 * g.runtime_ns}, "runtimes are withheld"),
        (lambda g: {"config_runtime": 0 * g.runtime_ns + 7}, "all configs have the same runtime"),
        (lambda g: {"edge_index": g.edge_index[:, ::-1]}, "nodes are not in topological order"),
        (lambda g: {"node_config_feat": rows_of(g, [0] * 40)}, "one config measured 40 times"),
    ],
)
def test_odd_files_carry_a_note(
    layout_graph: LayoutGraph, tmp_path: Path, changes, note: str | None
) -> None:
    (row,) = audit([altered(layout_graph, tmp_path, **changes(layout_graph))])
    assert (row.error, row.notes) == (None, (note,) if note else ())


def with_repeats(graph: LayoutGraph, folder: Path, runtime_ns: np.ndarray) -> GraphFile:
    """Write a graph of 20 distinct configs, each there twice: row i and row 20 + i are equal."""
    first, _ = distinct_configs(graph)
    values = rows_of(graph, [*first[:20]] * 2)
    return altered(graph, folder, node_config_feat=values, config_runtime=runtime_ns)


def test_repeated_configs_are_compared(layout_graph: LayoutGraph, tmp_path: Path) -> None:
    runtime_ns = np.tile(np.arange(1, 21) * 1_000_000, 2)
    runtime_ns[20:23] = [1_005_000, 2_030_000, 3_300_000]
    file = with_repeats(layout_graph, tmp_path, runtime_ns)
    (row,) = audit([file])
    assert (row.n_distinct, row.n_repeated, row.n_apart, row.notes) == (20, 20, 2, ())
    assert row.worst_disagreement == pytest.approx(0.1)
    assert row.noise is not None
    assert row.noise.tau == kendalltau(runtime_ns[:20], runtime_ns[20:]).statistic == 1
    assert (row.noise.n_repeated, row.noise.same, row.noise.is_dominant) == (20, 0, False)
    entry = json.loads(json.dumps(as_dict(row)))
    assert (entry["n_apart"], entry["n_repeated"]) == (2, 20)
    assert entry["noise"]["tau"] == entry["noise"]["best_tau"] == 1


def test_noise_and_runtimes_where_they_are_unusual_are_noted(
    layout_graph: LayoutGraph, tiny_tree: Path, tmp_path: Path
) -> None:
    runtime_ns = 10**9 + np.random.default_rng(0).integers(0, 10_000, 40)
    (row,) = audit([with_repeats(layout_graph, tmp_path, runtime_ns)])
    (note,) = row.notes
    assert note.startswith("more noise than difference between configs: tau ")
    assert "measurements of 20 configs" in note
    (row,) = audit([replace(layout_graph.file, split="test")])
    assert row.notes == ("runtimes are known, which is unusual in the test split",)
    for row in audit(find_graphs(tiny_tree, splits=("test",))):
        assert (row.n_apart, row.worst_disagreement, row.noise, row.notes) == (0, None, None, ())


def test_graphs_of_the_store_give_the_same_rows(tiny_tree: Path, tmp_path: Path) -> None:
    files = find_graphs(tiny_tree)
    prepared = prepare(files, tmp_path / "store")
    stored = audit(files, prepared=prepared)
    assert [row.file for row in stored] == [entry.stored for entry in prepared]
    expected = [
        replace(row, file=entry.stored) for row, entry in zip(audit(files), prepared, strict=True)
    ]
    assert stored == expected


@requires_real_data
def test_real_files_are_all_good_and_the_noise_file_is_noted() -> None:
    noise = real_file("layout:xla:random:openai_v0_rnn_optimized")
    rows = {row.file: row for row in audit(find_graphs(REAL))}
    assert [row.error for row in rows.values() if row.error] == []
    assert rows[noise].notes == ("one config measured 20 times",)
    assert rows[noise].n_apart == 0
    assert rows[noise].worst_disagreement == pytest.approx(2.1e-4, rel=0.02)
    unet_3d = rows[real_file("layout:xla:default:unet_3d.4x4.bf16")]
    assert "much noise: tau 0.2" in unet_3d.notes[0]
    assert unet_3d.n_repeated == 294
    assert rows[real_file("layout:xla:default:unet3d")].notes == ()
