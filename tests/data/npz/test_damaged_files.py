"""Two hundred damaged copies: each is refused with one line that names the file and the key.

Once with copies of small files made here, so that it runs everywhere, once with copies of real
files; the same damages, other seeds.
"""

import os
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.read import read_graph
from data.tree import GraphFile, find_graphs
from tests.data.damaged_arrays import LAYOUT_DAMAGES, SHARED_DAMAGES, TILE_DAMAGES
from tests.data.npz.damaged_archives import (
    ARCHIVE_DAMAGES,
    Damage,
    Damaged,
    Victim,
    bytes_lost,
    index_flipped,
    local_header_flipped,
    read_arrays,
    repacked,
)
from tests.data.packing.stores import check_same_graph
from tests.real_data import real_files, requires_real_data

N_COPIES = 200
# What is said of a member twice, and not read where zipfile does not read it.
HALF_HARMLESS = (local_header_flipped, index_flipped, bytes_lost)
DAMAGES = {
    "layout": (*ARCHIVE_DAMAGES, *SHARED_DAMAGES, *LAYOUT_DAMAGES),
    "tile": (*ARCHIVE_DAMAGES, *SHARED_DAMAGES, *TILE_DAMAGES),
}


def name_of(damage: Damage) -> str:
    if isinstance(damage, partial):
        return f"{damage.func.__name__}-{next(iter(damage.keywords.values()))}"
    return damage.__name__


def cases() -> list[object]:
    chosen = []
    for number in range(N_COPIES):
        kind = ("layout", "tile")[number % 2]
        damage = DAMAGES[kind][number // 2 % len(DAMAGES[kind])]
        chosen.append(pytest.param(kind, damage, number, id=f"{number}-{kind}-{name_of(damage)}"))
    return chosen


@cache
def victim_of(path: Path) -> Victim:
    content = path.read_bytes()
    return Victim(content, read_arrays(content))


def refusal(file: GraphFile, content: bytes, folder: Path) -> str:
    """Write a damaged copy and read it; the error's line without the path."""
    path = folder / f"{file.name}.npz"
    path.write_bytes(content)
    with pytest.raises(PipelineError) as caught:
        read_graph(GraphFile(file.collection, file.split, file.name, path))
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line) < 1000
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def is_read_all_the_same(file: GraphFile, content: bytes, folder: Path) -> bool:
    """Tell whether a copy, damaged where it decides nothing, is read to the same bits."""
    path = folder / f"{file.name}.npz"
    path.write_bytes(content)
    try:
        graph = read_graph(replace(file, path=path))
    except PipelineError:
        return False
    check_same_graph(replace(graph, file=file), read_graph(file))
    return True


def check(file: GraphFile, damage: Damage, seed: int, folder: Path) -> None:
    damaged: Damaged = damage(victim_of(file.path), np.random.default_rng(seed))
    if damage in HALF_HARMLESS and is_read_all_the_same(file, damaged.content, folder):
        return
    line = refusal(file, damaged.content, folder)
    if damaged.keys:
        shown = [ascii(key)[1:-1] for key in damaged.keys]
        assert any(f"key '{key}'" in line for key in shown), line


@pytest.mark.parametrize(("kind", "damage", "number"), cases())
def test_a_damaged_copy_of_a_made_file_is_refused(
    kind: str, damage: Damage, number: int, tiny_tree: Path, tmp_path: Path
) -> None:
    files = [file for file in find_graphs(tiny_tree) if file.collection.kind == kind]
    check(files[number % len(files)], damage, number, tmp_path)


@requires_real_data
@pytest.mark.parametrize(("kind", "damage", "number"), cases())
def test_a_damaged_copy_of_a_real_file_is_refused(
    kind: str, damage: Damage, number: int, tmp_path: Path
) -> None:
    files = real_files(kind, max_bytes=120_000)
    check(files[number % len(files)], damage, 1_000 + number, tmp_path)


def test_the_good_copies_are_read(tiny_tree: Path, tmp_path: Path) -> None:
    """What the damages start from is good, packed by numpy or by the tests' own packer."""
    for file in [*find_graphs(tiny_tree), *real_files(max_bytes=120_000)]:
        victim = victim_of(file.path)
        path = tmp_path / "copy.npz"
        path.write_bytes(repacked(victim.arrays))
        copy = read_graph(GraphFile(file.collection, file.split, file.name, path))
        np.testing.assert_array_equal(copy.node_feat, victim.arrays["node_feat"])
        np.testing.assert_array_equal(copy.runtime_ns, victim.arrays["config_runtime"])


def test_a_missing_file_a_folder_and_a_pipe_are_refused_at_once(
    tiny_tree: Path, tmp_path: Path
) -> None:
    file = find_graphs(tiny_tree)[0]
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "none.npz", tmp_path, tmp_path / "pipe.npz"):
        with pytest.raises(PipelineError, match="cannot be read") as caught:
            read_graph(GraphFile(file.collection, file.split, file.name, path))
        assert str(caught.value).startswith(f"{path}: ")
