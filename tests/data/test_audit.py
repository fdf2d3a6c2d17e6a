"""An audit names every bad file and counts every good one."""

import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from common.settings import SAMPLE
from data.audit import AuditRow, as_dict, audit, leaks, totals
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import Graph, LayoutGraph, TileGraph, distinct_configs
from data.graphs.node_columns import CATEGORICAL
from data.graphs.noise import Noise
from data.tree import GraphFile, collection_named, find_graphs
from features.scaling import SCALINGS, fit_node_scaler
from features.statistics.configs import statistics_of
from tests.data.npz.damaged_archives import read_arrays, repacked
from tests.support.command_line import call
from tests.support.real_data import REAL, ROOT, real_file, requires_real_data


def test_good_files_are_counted(tiny_tree: Path) -> None:
    files = find_graphs(tiny_tree)
    rows = audit(files)
    assert [row.file for row in rows] == files
    for row in rows:
        graph = read_graph(row.file)
        assert (row.error, row.n_configs) == (None, graph.n_configs)
        assert (row.n_nodes, row.n_edges) == (graph.n_nodes, len(graph.edge_index))
        assert row.is_labelled == (row.file.split != "test")
        assert row.n_configurable == len(getattr(graph, "node_config_ids", ()))
        is_layout = isinstance(graph, LayoutGraph)
        values = configs_at(graph, range(graph.n_configs)) if is_layout else graph.config_feat
        assert row.n_distinct == len(np.unique(values, axis=0))


def test_all_bad_files_are_listed_and_the_good_ones_still_counted(
    tiny_tree: Path, tmp_path: Path
) -> None:
    """If a name is in two splits, the second file has the error."""
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


def configs_at(graph: LayoutGraph, rows: Sequence[int]) -> np.ndarray:
    return graph.configs.rows(np.array(rows)).astype(np.float32)


def altered(graph: Graph, folder: Path, **changes: np.ndarray) -> GraphFile:
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
        (
            lambda g: {"edge_index": np.r_[g.edge_index[:-1], [[1, 1]]]},
            "nodes are not in topological order",
        ),
        (lambda g: {"node_config_feat": configs_at(g, [0] * 40)}, "one config measured 40 times"),
    ],
)
def test_odd_files_carry_a_note(
    layout_graph: LayoutGraph, tmp_path: Path, changes, note: str | None
) -> None:
    (row,) = audit([altered(layout_graph, tmp_path, **changes(layout_graph))])
    assert (row.error, row.notes) == (None, (note,) if note else ())


@pytest.mark.parametrize("opcode", [0, 121, 255])
def test_opcode_without_a_name_is_noted(opcode: int, tile_graph: TileGraph, tmp_path: Path) -> None:
    opcodes = np.r_[tile_graph.node_opcode[:-1], np.uint8(opcode)]
    (row,) = audit([altered(tile_graph, tmp_path, node_opcode=opcodes)])
    assert f"has opcodes without a name: {opcode}; expected 1..120" in row.notes


@pytest.mark.parametrize(("key", "value"), [("node_feat", -3e38), ("config_feat", 2.0**63)])
def test_huge_feature_is_noted_and_used_without_warnings(
    key: str, value: float, tile_graph: TileGraph, tmp_path: Path
) -> None:
    values = getattr(tile_graph, key).copy()
    categorical = CATEGORICAL if key == "node_feat" else ()
    values[:, np.setdiff1d(np.arange(values.shape[1]), categorical)] = value
    file = altered(tile_graph, tmp_path, **{key: values})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (row,) = audit([file])
        text = f"has a feature of size {abs(value):.0e}; XLA has no size of 2^63 or more"
        assert (row.error, text in row.notes) == (None, True)
        graph = read_graph(file)
        for name in ("plain", "all"):
            assert np.isfinite(statistics_of(graph, name)(np.arange(2))).all()
        for scaling in SCALINGS:
            for learned in ([tile_graph.node_feat], [tile_graph.node_feat, graph.node_feat]):
                assert np.isfinite(fit_node_scaler(learned, scaling=scaling)(graph.node_feat)).all()


def test_copies_of_a_graph_in_another_split_are_noted(
    layout_graph: LayoutGraph, tile_graph: TileGraph, tmp_path: Path
) -> None:
    """Whatever their names, the order of their configs, and whether runtimes are withheld."""
    order = np.random.default_rng(0).permutation(layout_graph.n_configs)
    configs = configs_at(layout_graph, [*order])
    changes = {"node_config_feat": configs, "config_runtime": 0 * layout_graph.runtime_ns}
    moved = replace(altered(layout_graph, tmp_path, **changes), split="test", name="hidden")
    tile = tile_graph.file
    other = next(path for path in sorted(tile.path.parent.iterdir()) if path != tile.path)
    rows = audit(
        [
            replace(moved, collection=collection_named("layout:nlp:random")),
            *[replace(tile, split="valid", name=f"k{number}") for number in range(4)],
            replace(tile, name="again"),
            replace(tile, split="test", name="other", path=other),
            *(layout_graph.file, tile),
        ]
    )
    train = f"layout:xla:random/train/{layout_graph.file.name}"
    copies = ", ".join(f"k{number} (tile:xla/train/again)" for number in range(3))
    told = "contains copies of another split's graphs, so that its scores are too good:"
    end = "; expected each graph in one split"
    assert leaks(rows) == [
        f"tile:xla/valid: {told} {copies} and 1 more{end}",
        f"layout:nlp:random/test: {told} hidden ({train}){end}",
    ]


def with_repeats(graph: LayoutGraph, folder: Path, runtime_ns: np.ndarray) -> GraphFile:
    """Write a graph of 20 distinct configs, each there twice: row i and row 20 + i are equal."""
    first, _ = distinct_configs(graph)
    values = configs_at(graph, [*first[:20]] * 2)
    return altered(graph, folder, node_config_feat=values, config_runtime=runtime_ns)


def test_ceiling_is_tau_between_measurements_of_repeated_configs(
    layout_graph: LayoutGraph, tmp_path: Path
) -> None:
    runtime_ns = np.tile(np.arange(1, 21) * 1_000_000, 2)
    runtime_ns[20:23] = [1_005_000, 2_030_000, 3_300_000]
    (row,) = audit([with_repeats(layout_graph, tmp_path, runtime_ns)])
    assert (row.n_distinct, row.notes) == (20, ())
    assert row.ceiling == kendalltau(runtime_ns[:20], runtime_ns[20:]).statistic == 1
    assert row.noise is not None
    assert row.noise.n_repeated == 20
    entry = json.loads(json.dumps(as_dict(row)))
    assert entry["noise"]["tau"] == entry["noise"]["best_tau"] == 1


def test_unusual_noise_and_runtimes_are_noted(layout_graph: LayoutGraph, tmp_path: Path) -> None:
    runtime_ns = 10**9 + np.random.default_rng(0).integers(0, 10_000, 40)
    (row,) = audit([with_repeats(layout_graph, tmp_path, runtime_ns)])
    (note,) = row.notes
    assert note.startswith("much noise: tau ")
    assert "measurements of 20 configs" in note
    (row,) = audit([replace(layout_graph.file, split="test")])
    assert row.notes == ("runtimes are known, which is unusual in the test split",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (row,) = audit([with_repeats(layout_graph, tmp_path, 0 * runtime_ns)])
    assert row.notes == ("runtimes are withheld",)
    changes = {
        "config_runtime": 0 * runtime_ns,
        "node_config_feat": configs_at(layout_graph, [0] * 40),
    }
    (row,) = audit([altered(layout_graph, tmp_path, **changes)])
    assert row.notes == ("runtimes are withheld", "40 rows have the same config")


@requires_real_data
def test_real_files_are_all_good_and_the_noise_file_is_noted() -> None:
    noise = real_file("layout:xla:random:openai_v0_rnn_optimized")
    rows = {row.file: row for row in audit(find_graphs(REAL))}
    assert [row.error for row in rows.values() if row.error] == []
    assert rows[noise].notes == ("one config measured 20 times",)
    unet_3d = rows[real_file("layout:xla:default:unet_3d.4x4.bf16")]
    assert "much noise: tau 0.2" in unet_3d.notes[0]
    assert rows[real_file("layout:xla:default:unet3d")].notes == ()


def row(collection: str, split: str, n_configs: int, **facts: object) -> AuditRow:
    file = GraphFile(collection_named(collection), split, f"{n_configs}", Path("a.npz"))
    return replace(AuditRow(file, n_configs=n_configs), **facts)


def test_totals_add_up_by_collection_and_split() -> None:
    nlp, tile = ("layout:nlp:default", "train"), ("tile:xla", "train")
    rows = [
        row(*tile, 3, is_labelled=True, n_distinct=2),
        row(*tile, 4, is_labelled=True, n_distinct=4),
        row(*tile, 0, error="c.npz: damaged"),
        row("tile:xla", "test", 5, n_distinct=5),
        row(*nlp, 9, noise=Noise(n_repeated=20, tau=0.2), again_tau=0.9),
        row(*nlp, 9, noise=Noise(n_repeated=20, tau=float("nan")), again_tau=0.4),
        row(*nlp, 9, again_tau=0.8),
    ]
    tile_train, tile_test, layout = totals(rows)
    columns = ("n_files", "n_bad", "n_labelled", "n_configs", "n_distinct")
    assert [tile_train[key] for key in columns] == [3, 1, 2, 7, 6]
    assert tile_train["median_tau"] is None and tile_test["n_labelled"] == 0
    assert layout["median_tau"] == pytest.approx(0.4)


def test_second_measurement_of_the_manifest_is_a_ceiling(tiny_tree: Path, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(tiny_tree, tmp_path / "tree"))
    names = [file.submission_id for file in find_graphs(tree, splits=("train",))]
    graphs = {name: {"again_tau": 0.75} for name in names}
    manifest = {"environments": {}, "graphs": graphs, "left_out": {}}
    (tree / "manifest.json").write_text(json.dumps(manifest))
    page = json.loads(call("audit", "--data", tree, "--json"))
    rows = audit(find_graphs(tree), measured=graphs)
    assert {row.file.submission_id for row in rows if row.again_tau == 0.75} == set(names)
    assert page["files"] == json.loads(json.dumps([as_dict(line) for line in rows]))
    assert page["parts"] == totals(rows) and page["parts"][0]["median_tau"] == 0.75
    assert page["notes"] == leaks(rows)
    assert (page["n_bad"], page["missing_parts"]) == (0, [])


def test_command_prints_the_samples_table() -> None:
    text = call("audit", "--data", SAMPLE)
    page = (ROOT / "docs" / "guides" / "dataset.md").read_text().split("## Check every file\n")[1]
    for line in page.split("```text\n")[1].split("```")[0].splitlines():
        assert line in ("…", *text.splitlines())
    assert max(len(line) for line in text.splitlines() if not line.startswith("note")) <= 100


def test_only_damaged_files_make_the_command_fail(tiny_tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_tree / "npz/tile", tmp_path / "npz/tile")
    there = "tile:xla/train, tile:xla/valid, tile:xla/test"
    assert f"\nmissing: all but {there}\n" in call("audit", "--data", tmp_path)
    next((tmp_path / "npz/tile/xla/train").glob("*.npz")).write_bytes(b"no archive")
    call("audit", "--data", tmp_path, expect=1)
    assert json.loads(call("audit", "--data", tmp_path, "--json", expect=1))["n_bad"] == 1
