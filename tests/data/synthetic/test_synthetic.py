"""The synthetic tree: the official format, legal configs, the same bytes for the same seed."""

import os
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kendalltau

from common.errors import PipelineError, UsageError
from data.synthetic import (
    PLANS,
    layout_runtime_ns,
    synthesize,
    tile_runtime_ns,
    write_layout_graph,
)
from data.synthetic.hlo import OPCODES
from data.synthetic.plan import FAMILIES, siblings
from data.synthetic.write import file_stem
from data.tree import find_graphs, missing_parts
from data.withheld import read_withheld, read_withheld_normalizers

ROOT = Path(__file__).parents[2]
REAL = Path(os.environ.get("TPUGRAPHS_REAL", ROOT.parent / "shared" / "tpugraphs"))
Arrays = SimpleNamespace


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "tree"
    synthesize(out, seed=3, plan=PLANS["tiny"])
    return out


def load(path: Path) -> Arrays:
    with np.load(path) as archive:
        return Arrays(**{key: archive[key] for key in archive.files})


def layout_files(tree: Path) -> list[Path]:
    return sorted((tree / "npz" / "layout").rglob("*.npz"))


def tile_files(tree: Path) -> list[Path]:
    return sorted((tree / "npz" / "tile").rglob("*.npz"))


def int8_configs(graph: Arrays) -> NDArray[np.int8]:
    return graph.node_config_feat.astype(np.int8)


def operands_of(graph: Arrays) -> dict[int, list[int]]:
    operands = defaultdict(list)
    for consumer, producer in graph.edge_index.tolist():
        operands[consumer].append(producer)
    return operands


def shape_of(graph: Arrays, node: int) -> tuple[int, ...]:
    return tuple(int(size) for size in graph.node_feat[node, 21:27] if size > 0)


def test_every_part_of_the_official_tree_is_there(tree: Path) -> None:
    files = find_graphs(tree)
    assert missing_parts(files) == []
    assert len(files) == 4 * sum(PLANS["tiny"].layout_graphs) + sum(PLANS["tiny"].tile_kernels)


def member_types(path: Path) -> dict[str, tuple[np.dtype, int]]:
    return {key: (value.dtype, value.ndim) for key, value in vars(load(path)).items()}


@pytest.mark.parametrize("kind", ["layout", "tile"])
def test_keys_types_and_ranks_equal_the_real_files(tree: Path, kind: str) -> None:
    real = sorted((REAL / "npz" / kind).rglob("*.npz"))
    if not real:
        pytest.skip(f"no real {kind} files at {REAL}; set TPUGRAPHS_REAL")
    made = layout_files(tree) if kind == "layout" else tile_files(tree)
    for path in made:
        assert member_types(path) == member_types(real[0])


def test_programs_are_topological_with_sorted_distinct_edges(tree: Path) -> None:
    for path in layout_files(tree) + tile_files(tree):
        graph = load(path)
        n = len(graph.node_opcode)
        consumer, producer = graph.edge_index.T
        assert (consumer > producer).all() and producer.min() >= 0 and consumer.max() < n
        edges = [tuple(edge) for edge in graph.edge_index.tolist()]
        assert edges == sorted(set(edges))


def test_layout_files_split_computations_and_order_configurable_nodes(tree: Path) -> None:
    configurable = {OPCODES[name] for name in ("convolution", "dot", "reshape")}
    for path in layout_files(tree):
        graph = load(path)
        splits = graph.node_splits[0]
        assert splits[0] == 0 and splits[-1] == len(graph.node_opcode)
        assert (np.diff(splits) > 0).all() and len(splits) > 2
        assert np.flatnonzero(graph.node_feat[:, 0]).tolist() == (splits[1:] - 1).tolist()
        assert (np.diff(graph.node_config_ids) > 0).all()
        assert set(graph.node_opcode[graph.node_config_ids].tolist()) <= configurable


def test_node_features_follow_the_rules_of_the_real_files(tree: Path) -> None:
    paths = layout_files(tree) + tile_files(tree) + sorted((REAL / "npz").rglob("*.npz"))
    empty_products = [44, 52, 60, 68, 76, 84]
    for path in paths:
        graph = load(path)
        feat = graph.node_feat
        shape, minor = feat[:, 21:27], feat[:, 134:140]
        rank = (shape > 0).sum(axis=1)
        is_tuple = feat[:, 18] > 0
        assert (feat[:, 2:21].sum(axis=1) == 1).all()
        assert not feat[:, 1].any()
        assert np.allclose(feat[:, 27], shape.sum(axis=1))
        products = np.where(shape > 0, shape, 1).prod(axis=1)
        assert np.allclose(feat[:, 28], products, rtol=1e-6)
        assert (feat[:, 29][~is_tuple] == 0).all()
        for row, r in zip(minor.astype(int).tolist(), rank.tolist(), strict=True):
            assert sorted(row[:r]) == list(range(r)) and not any(row[r:])
        no_window = feat[:, 43] == 0
        assert (feat[no_window][:, empty_products] == 1).all()
        is_convolution = graph.node_opcode == OPCODES["convolution"]
        blocks = feat[is_convolution, 37:93].reshape(-1, 7, 8)
        n_windows = (blocks[:, 0, :6] > 0).sum(axis=1)
        assert (blocks[:, 6, 6:].sum(axis=1) == n_windows).all()  # reversed and not reversed
        assert (blocks[:, :6, 6] == blocks[:, :6, :6].sum(axis=2)).all()
        for i, window in enumerate(n_windows.tolist()):
            assert (blocks[i, :6, 7] == blocks[i, :6, :window].prod(axis=1)).all()


def test_configs_are_whole_or_leading_parts_of_minor_to_major_orders(tree: Path) -> None:
    n_partial = n_whole = 0
    for path in layout_files(tree):
        graph = load(path)
        operands = operands_of(graph)
        for j, node in enumerate(graph.node_config_ids.tolist()):
            tensors = [node, *[v for v in operands[node] if shape_of(graph, v)]][:3]
            for tensor in range(3):
                values = graph.node_config_feat[:, j, 6 * tensor : 6 * tensor + 6].astype(int)
                rank = len(shape_of(graph, tensors[tensor])) if tensor < len(tensors) else 0
                for row in np.unique(values, axis=0).tolist():
                    given = [v for v in row if v >= 0]
                    assert row == given + [-1] * (6 - len(given))
                    assert len(set(given)) == len(given) and max(given, default=-1) < rank
                    is_reshape = graph.node_opcode[node] == OPCODES["reshape"]
                    assert len(given) in ((0, rank) if is_reshape else (0, min(rank, 2)))
                    n_whole += is_reshape and len(given) > 0
                    n_partial += 0 < len(given) < rank
    assert n_partial and n_whole


def test_some_configurable_nodes_are_tied(tree: Path) -> None:
    n_nodes = n_distinct = 0
    for path in layout_files(tree):
        configs = int8_configs(load(path)).transpose(1, 0, 2)
        n_nodes += len(configs)
        n_distinct += len(np.unique(configs.reshape(len(configs), -1), axis=0))
    assert 0.3 * n_nodes < n_distinct < 0.9 * n_nodes


def test_default_search_starts_at_the_default_repeats_and_finds_faster_configs(tree: Path) -> None:
    for path in sorted((tree / "npz/layout/nlp/default/train").glob("*.npz")):
        graph = load(path)
        configs = int8_configs(graph)
        is_default = (configs == -1).all(axis=(1, 2))
        assert is_default.any()
        distinct, count = np.unique(configs.reshape(len(configs), -1), axis=0, return_counts=True)
        assert 0.1 < 1 - len(distinct) / len(configs) < 0.7
        twice = (configs == distinct[count.argmax()].reshape(configs.shape[1:])).all(axis=(1, 2))
        assert len(np.unique(graph.config_runtime[twice])) > 1  # each measurement has its own noise
        other = load(Path(str(path).replace("/default/", "/random/")))
        assert np.median(graph.config_runtime) < np.median(other.config_runtime)


def test_splits_share_no_family() -> None:
    for source in ("xla", "nlp"):
        names = [
            {family.name for family in FAMILIES[source, split]}
            for split in ("train", "valid", "test")
        ]
        assert sum(map(len, names)) == len(set().union(*names))
        many = siblings(source, "train", 200)
        assert len({sibling.name(4) for sibling in many}) == 200


def test_tile_configs_are_distinct_and_hold_sums_and_products(tree: Path) -> None:
    for path in tile_files(tree):
        config = load(path).config_feat
        assert len(np.unique(config, axis=0)) == len(config)
        for start in (0, 8, 16):
            sizes = config[:, start : start + 6]
            product = np.where(sizes > 0, sizes, 1).prod(axis=1) * sizes.any(axis=1)
            assert (config[:, start + 6] == sizes.sum(axis=1)).all()
            assert (config[:, start + 7] == product).all()
        assert (config[:, 8] > 0).all()


def test_test_runtimes_are_withheld_and_near_the_cost_model(tree: Path) -> None:
    withheld = read_withheld(tree)
    normalizers = read_withheld_normalizers(tree)
    test_files = [file for file in find_graphs(tree) if file.split == "test"]
    assert set(withheld) == {file.submission_id for file in test_files}
    for file in test_files:
        graph = load(file.path)
        assert len(file.name) == 32 and int(file.name, 16) >= 0
        assert not graph.config_runtime.any()
        if file.collection.kind == "layout":
            true_ns = layout_runtime_ns(graph, int8_configs(graph))
        else:
            true_ns = tile_runtime_ns(graph, graph.config_feat)
            assert (graph.config_runtime_normalizers == 1).all()
            assert (normalizers[file.submission_id] == withheld[file.submission_id][0]).all()
        assert np.allclose(withheld[file.submission_id], true_ns, rtol=0.06)


def test_labelled_files_are_named_by_family() -> None:
    assert file_stem("resnet_like_d4_w64_b32", "train") == "resnet_like_d4_w64_b32"
    assert file_stem("resnet_like_d4_w64_b32", "test") != file_stem("vgg_like_d4_w64_b32", "test")


def test_labelled_kernels_are_normalised_by_their_first_config(tree: Path) -> None:
    for path in sorted((tree / "npz/tile/xla/train").glob("*.npz")):
        kernel = load(path)
        assert (kernel.config_runtime_normalizers == kernel.config_runtime[0]).all()


def test_runtimes_can_be_ranked_but_not_by_noise(tree: Path) -> None:
    for path in sorted((tree / "npz/layout").glob("*/random/train/*.npz")):
        graph = load(path)
        runtime_ns = graph.config_runtime
        assert 1.2 < runtime_ns.max() / runtime_ns.min() < 8
        assert kendalltau(layout_runtime_ns(graph, int8_configs(graph)), runtime_ns)[0] > 0.9


def tree_bytes(tree: Path) -> dict[str, bytes]:
    return {str(p.relative_to(tree)): p.read_bytes() for p in tree.rglob("*") if p.is_file()}


def test_the_seed_decides_every_byte_in_any_process(tree: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from data.synthetic import PLANS, synthesize; "
        "synthesize(Path(sys.argv[1]), seed=3, plan=PLANS['tiny'])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(tmp_path / "again")]
    subprocess.run(command, check=True, env=environment)
    assert tree_bytes(tmp_path / "again") == tree_bytes(tree)


def test_another_seed_gives_another_tree_and_progress_is_reported(
    tree: Path, tmp_path: Path
) -> None:
    calls: list[tuple[int, int]] = []
    (tmp_path / "other").mkdir()  # an empty folder is not in the way
    synthesize(
        tmp_path / "other", seed=4, plan=PLANS["tiny"], report=lambda *now: calls.append(now)
    )
    assert tree_bytes(tmp_path / "other") != tree_bytes(tree)
    assert calls == [(i, len(calls)) for i in range(1, 1 + len(calls))] and calls
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_large_graph_is_written_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.npz"
    tracemalloc.start()
    write_layout_graph(path, n_nodes=1500, n_configurable=100, n_configs=20_000, seed=1)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    graph = load(path)
    assert graph.node_config_feat.shape == (20_000, 100, 18)
    assert len(graph.node_opcode) == 1500 and (graph.config_runtime > 0).all()
    assert peak_bytes < 0.7 * graph.node_config_feat.nbytes
    some = np.arange(0, 20_000, 997)
    true_ns = layout_runtime_ns(graph, graph.node_config_feat[some].astype(np.int8))
    assert np.allclose(graph.config_runtime[some], true_ns, rtol=0.04)


def test_an_impossible_size_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="more than the 300 asked for"):
        write_layout_graph(tmp_path / "x.npz", n_nodes=300, n_configurable=200, n_configs=5)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="not an empty folder"):
        synthesize(tmp_path, plan=PLANS["tiny"])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
