"""The official tree: the list of graphs, its order, and errors for missing folders."""

import os
from pathlib import Path

import pytest

from common.errors import PipelineError, UsageError
from data.tree import (
    COLLECTIONS,
    SPLITS,
    Collection,
    GraphFile,
    collection_named,
    collections_named,
    file_from_path,
    find_graphs,
    missing_parts,
    name_faults,
    npz_root,
    stray_folders,
)


def make(root: Path, *places: str) -> None:
    for place in places:
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_graphs_are_listed_by_collection_split_and_name(tmp_path: Path) -> None:
    make(
        tmp_path / "npz",
        *("layout/nlp/random/test/z.npz", "layout/xla/default/valid/b.4x4.bf16.npz"),
        *("layout/xla/default/train/c.npz", "layout/xla/default/train/a.npz"),
        "tile/xla/test/k_-1f.npz",
        # No graphs of the tree:
        *("tile/xla/train/.a.npz.x7.tmp", "tile/xla/train/.hidden.npz", "tile/xla/train/a.csv"),
        *("tile/xla/train/deeper/b.npz", "tile/xla/b.npz", "tile/nlp/train/c.npz"),
        *("layout/xla/train/d.npz", "layout/xla/default/validation/e.npz"),
    )
    assert [file.submission_id for file in find_graphs(tmp_path)] == [
        "tile:xla:k_-1f",
        "layout:xla:default:a",
        "layout:xla:default:c",
        "layout:xla:default:b.4x4.bf16",
        "layout:nlp:random:z",
    ]
    collections = (collection_named("layout:xla:default"),)
    (chosen,) = find_graphs(tmp_path, collections=collections, splits=("valid",))
    assert (chosen.name, chosen.split) == ("b.4x4.bf16", "valid")


def test_misplaced_folders_are_named_with_the_likely_place(tmp_path: Path) -> None:
    likely = {
        "layout/XLA/random/train": "layout/xla/random/train",
        "layout/xla/random/validation": "layout/xla/random/valid",
        "tile/train": "tile/xla/train",
    }
    make(tmp_path / "npz", *(f"{place}/a.npz" for place in (*likely, "layout/xla/random/valid")))
    make(tmp_path / "npz", "tile/train/.hidden.npz")
    assert stray_folders(tmp_path) == [
        f"{tmp_path}/npz/{place}: 1 npz files that nothing reads; is {meant} meant?"
        for place, meant in likely.items()
    ]


def test_tree_of_kaggle_is_read_unless_the_other_one_has_graphs(tmp_path: Path) -> None:
    make(tmp_path, "npz_all/npz/tile/xla/train/a.npz", "npz/tile/xla/train/._b.npz")
    assert npz_root(tmp_path) == tmp_path / "npz_all" / "npz"
    assert [file.name for file in find_graphs(tmp_path)] == ["a"]
    make(tmp_path, "npz/tile/xla/train/b.npz")
    assert [file.name for file in find_graphs(tmp_path)] == ["b"]


def test_links_keep_their_place_in_the_tree(tmp_path: Path) -> None:
    make(tmp_path / "disk", "a/test/k.npz", "b/c/d/e.npz")
    (tmp_path / "npz/tile/xla").mkdir(parents=True)
    (tmp_path / "npz/tile/xla/test").symlink_to(tmp_path / "disk/a/test")
    (tmp_path / "npz/tile/xla/training").symlink_to(tmp_path / "disk/b/c/d")
    (tmp_path / "npz/tile/xla/valid").mkdir()
    link = tmp_path / "npz/tile/xla/valid/mine.npz"
    link.symlink_to(tmp_path / "disk/b/c/d/e.npz")
    files = find_graphs(tmp_path)
    assert [file.submission_id for file in files] == ["tile:xla:mine", "tile:xla:k"]
    assert [file_from_path(file.path) for file in files] == files
    assert stray_folders(tmp_path)[0].startswith(f"{tmp_path}/npz/tile/xla/training: ")
    shortcut = tmp_path / "shortcut.npz"  # outside the tree; the file that it leads to is in it
    shortcut.symlink_to(tmp_path / "npz/tile/xla/train/real.npz")
    placed = file_from_path(shortcut)
    assert (placed.submission_id, placed.split) == ("tile:xla:real", "train")
    assert placed.data_dir == tmp_path


def test_names_that_a_run_refuses_are_listed(tmp_path: Path) -> None:
    def file(name: str, split: str = "test") -> GraphFile:
        return GraphFile(COLLECTIONS[0], split, name, tmp_path / split / f"{name}.npz")

    good = [file("a.4x4-_+'é;&1"), file("graph (2)", "train"), file("a, b", "train")]
    bad = [file("graph (1)"), file("a,b", "valid"), file('a"'), file("a\u2028b")]
    assert name_faults(good) == []
    assert [named for named, _ in name_faults([*good, *bad])] == bad
    assert name_faults(bad[:1])[0][1] == (
        f"{tmp_path}/test/graph (1).npz: no row of a submission can have this name; expected UTF-8 "
        "text without blanks, commas and quotes; rename or remove it"
    )
    broken = file(os.fsdecode(b"a\xff"), "train")  # a name in Latin-1, as older systems wrote it
    long, twin = file("é" * 101, "train"), file(good[0].name, "valid")
    told = [line for _, line in name_faults([*good, broken, long, file("é" * 100), twin])]
    assert ["UTF-8" in told[0], "at most 200 bytes" in told[1]] == [True, True]
    assert ["is already in tile:xla" in line for line in told] == [False, False, True]


def test_folder_without_graphs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no such file or folder"):
        find_graphs(tmp_path / "none")
    make(tmp_path, "misnamed/npz/layout/xla/default/training/a.npz")
    meant = r"no graph of .*; .*training: 1 npz files .*; is layout/xla/default/train meant\?$"
    with pytest.raises(PipelineError, match=meant):
        find_graphs(tmp_path / "misnamed")
    with pytest.raises(PipelineError, match="contains no npz/"):
        find_graphs(tmp_path)
    (tmp_path / "npz").mkdir()
    with pytest.raises(PipelineError, match=rf"npz/\); is {tmp_path} meant\?; expected files"):
        find_graphs(tmp_path / "npz")
    with pytest.raises(PipelineError, match=r"no graph of .* found in train, valid, test"):
        find_graphs(tmp_path)
    make(tmp_path, "npz/tile/xla/train/a.npz")
    with pytest.raises(PipelineError, match=r"no graph of .* found in test \(only in train\);"):
        find_graphs(tmp_path, splits=("test",))


def test_missing_parts_are_listed(tmp_path: Path) -> None:
    make(tmp_path / "npz", "layout/xla/default/train/a.npz", "tile/xla/test/a.npz")
    missing = missing_parts(find_graphs(tmp_path))
    assert len(missing) == len(COLLECTIONS) * len(SPLITS) - 2
    assert missing[:3] == ["tile:xla/train", "tile:xla/valid", "layout:xla:default/valid"]


@pytest.mark.parametrize("collection", COLLECTIONS, ids=lambda c: c.name)
def test_collection_is_known_by_name_slug_and_folder(collection) -> None:
    assert collection_named(collection.name) is collection
    assert collection_named(collection.slug) is collection
    for split in SPLITS:
        path = Path("/data/npz", *collection.folder.split("/"), split, "a.b.npz")
        assert file_from_path(path) == GraphFile(collection, split, "a.b", path)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("layout", COLLECTIONS[1:]),
        ("tile", COLLECTIONS[:1]),
        ("layout:nlp", COLLECTIONS[3:]),
        ("layout-xla, tile:xla", COLLECTIONS[:3]),
        ("layout:nlp,layout:nlp:random", COLLECTIONS[3:]),
        ("layout:xla:random", COLLECTIONS[2:3]),
        (None, COLLECTIONS),
    ],
)
def test_common_beginning_names_several_collections(
    names: str | None, chosen: tuple[Collection, ...]
) -> None:
    assert collections_named(names) == chosen


@pytest.mark.parametrize("names", ["", "lay", "layout:", "layout:x", "tile:nlp", "tile,"])
def test_half_a_word_names_no_collection(names: str) -> None:
    with pytest.raises(UsageError, match="no such collection; known: tile:xla, layout:xla:default"):
        collections_named(names)
