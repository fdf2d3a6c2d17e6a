"""`layout.one_program`: what learns a program's own configs ranks further ones of it."""

import shutil
from pathlib import Path

import pytest

from data.tree import collection_named, find_graphs
from models.run_folder import read_config
from pipeline.run.run import _is_one_program
from tests.command_line import stderr_of

XLA = collection_named("layout:xla:random")
SETS = (
    *("--set", "layout.one_program=[config_columns_boosting]"),
    *("--set", "config_columns_boosting.num_boost_round=5"),
    *("--set", "blend.layout_spread=1"),
)


@pytest.fixture
def tree(tiny_tree: Path, tmp_path: Path) -> Path:
    """A tree that holds one program in two files."""
    source = find_graphs(tiny_tree, collections=(XLA,), splits=("train",))[0]
    for split in ("train", "valid"):
        folder = tmp_path / "tree" / "npz" / XLA.folder / split
        folder.mkdir(parents=True)
        shutil.copy(source.path, folder / f"{split}.npz")
    return tmp_path / "tree"


def test_one_program_is_ranked_best_first_by_what_learns_it(tree: Path, tmp_path: Path) -> None:
    words = ("run", "--recipe", "smoke", *SETS, "--data", tree, "--out", tmp_path / "run")
    lines = stderr_of(*words)
    assert "one program alone: config_columns_boosting ranks its layouts" in lines
    recipe = read_config(tmp_path / "run")["recipe"]
    assert recipe["layout"]["models"] == ["config_columns_boosting"]
    assert recipe["blend"]["layout_spread"] == 0
    stderr_of(*words, "--resume")  # and the same again finds its own folder


@pytest.mark.parametrize("split", ["train", "test"])
def test_of_two_programs_it_is_not_asked(tree: Path, tiny_tree: Path, split: str) -> None:
    others = find_graphs(tiny_tree, collections=(XLA,), splits=("valid",))
    assert _is_one_program(find_graphs(tree))
    folder = tree / "npz" / XLA.folder / split
    folder.mkdir(exist_ok=True)
    shutil.copy(others[0].path, folder / "other.npz")
    assert not _is_one_program(find_graphs(tree))
    (folder / "other.npz").write_bytes(b"no zip")  # which the audit names
    assert not _is_one_program(find_graphs(tree))
