"""Synthetic layout graphs of given sizes: exact, labelled, whole or not at all."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from common.errors import UsageError
from data.graph_store.fingerprint import fingerprint
from data.npz.write import COMPRESSION_LEVEL
from data.read import read_graph_at
from data.synthetic import GraphSize, layout_runtime_ns, sized, synthesize_sizes
from data.tree import collection_named, find_graphs
from tests.command_line import call

ONE, OTHER = GraphSize(600, 20, 30), GraphSize(700, 40, 50)


@pytest.mark.parametrize("search", ["random", "default"])
def test_each_size_is_one_labelled_graph_of_its_collection(search: str, tmp_path: Path) -> None:
    place = collection_named(f"layout:nlp:{search}")
    files = synthesize_sizes(tmp_path / "out", [ONE, OTHER], collection=place, split="valid")
    assert files == find_graphs(tmp_path / "out")
    assert {(file.collection, file.split) for file in files} == {(place, "valid")}
    for size, file in zip((ONE, OTHER), files, strict=True):
        graph = read_graph_at(file.path)
        n_configurable = len(graph.node_config_ids)
        assert GraphSize(graph.n_nodes, n_configurable, graph.n_configs) == size
        configs = graph.configs.rows(np.arange(size.n_configs))
        assert configs.nbytes * 4 == size.config_bytes
        true_ns = layout_runtime_ns(graph, configs)
        assert np.allclose(graph.runtime_ns, true_ns, rtol=0.04)


def test_the_seed_decides_the_content(tmp_path: Path) -> None:
    prints = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        prints.append(fingerprint(synthesize_sizes(tmp_path / name, [ONE], seed=seed)))
    assert prints[0] == prints[1] != prints[2]


def test_configs_shrink_as_far_as_in_the_real_files(tmp_path: Path) -> None:
    pytest.importorskip("zlib_ng")
    (file,) = synthesize_sizes(tmp_path / "out", [GraphSize(2000, 100, 1000)])
    bare = synthesize_sizes(tmp_path / "bare", [GraphSize(2000, 100, 1)])[0].path.stat().st_size
    ratio = GraphSize(2000, 100, 1000).config_bytes / (file.path.stat().st_size - bare)
    assert 15 < ratio < 90, f"level {COMPRESSION_LEVEL}"


def test_progress_counts_configs_and_ends_at_all(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    size = GraphSize(1500, 100, 6000)  # more than one chunk
    synthesize_sizes(tmp_path / "out", [size], progress=lambda *now: told.append(now))
    assert len(told) > 1 and told[-1] == (size.name, 6000, 6000)
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})


def test_memory_is_bounded_by_the_choices_of_the_search(tmp_path: Path) -> None:
    def peak_bytes(n_configs: int) -> int:
        tracemalloc.start()
        synthesize_sizes(tmp_path / str(n_configs), [GraphSize(1500, 100, n_configs)])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    few, many = peak_bytes(5_000), peak_bytes(25_000)
    assert many - few < 20_000 * 3 * 100 * 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--graph", "300:200:5"], "more than the 300 asked for"),
        (["--graph", "600:20:5", "--graph", "300:200:5"], "300:200:5"),
        (["--graph", "600:20"], "NODES:CONFIGURABLE:CONFIGS"),
        (["--graph", "600:-1:5"], "NODES:CONFIGURABLE:CONFIGS"),
        (["--graph", "600:20:0"], "at least 1"),
        (["--graph", "600:601:5"], "more configurable nodes than nodes"),
        (["--graph", "600:20:5000000"], "1000000 configs"),
        (["--graph", "600:20:5", "--graph", "600:20:5"], "given twice"),
        (["--graph", "600:20:5", "--plan", "tiny"], "one of them"),
        (["--graph", "600:20:5", "--collection", "tile:xla"], "layout collection"),
        (["--graph", "600:20:5", "--split", "test"], "train, valid"),
        (["--split", "valid"], "--graph"),
    ],
)
def test_what_cannot_be_made_is_one_line_and_leaves_nothing(
    options: list[str], named: str, tmp_path: Path
) -> None:
    text = call("synthesize", "--out", tmp_path / "out", *options, expect=2)
    assert text.startswith("error: ") and text.count("\n") == 1
    assert named in text
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_fails_midway_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = sized.write_layout_graph, []

    def write_once(path: Path, **options: object) -> None:
        if written:
            raise OSError(28, "No space left on device")
        write(path, **options)
        written.append(path)

    monkeypatch.setattr(sized, "write_layout_graph", write_once)
    out = tmp_path / "out"
    text = call("synthesize", "--out", out, "--graph", "600:20:5", "--graph", "600:20:6", expect=1)
    assert text == f"error: {out}: cannot be written: No space left on device\n"
    assert written and list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(UsageError, match="not an empty folder"):
        synthesize_sizes(tmp_path, [ONE])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_json_tells_the_files_and_their_sizes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = json.loads(call("synthesize", "--out", out, "--graph", "600:20:30", "--json"))
    (row,) = told["graphs"]
    assert (told["collection"], told["split"]) == ("layout:xla:random", "train")
    path = out / "npz/layout/xla/random/train/n600_k20_c30.npz"
    assert Path(row["file"]) == path and row["file_bytes"] == path.stat().st_size
    assert row["config_bytes"] == 4 * 18 * 20 * 30
    lines = call("synthesize", "--out", tmp_path / "again", "--graph", "600:20:30").splitlines()
    assert lines[0].endswith("again") and "n600_k20_c30.npz" in lines[1]
