"""Equal data has an equal fingerprint, wherever it lies; any change of content gives another."""

import shutil
from dataclasses import replace
from pathlib import Path

from data.graph_store.stored_graph import fingerprint
from data.tree import find_graphs
from tests.data.npz.damaged_archives import read_arrays, repacked


def test_copies_in_another_folder_and_another_order_agree(tiny_tree: Path, tmp_path: Path) -> None:
    files = find_graphs(tiny_tree)
    whole = fingerprint(files)
    assert len(whole) == 16
    assert int(whole, 16) >= 0
    shutil.copytree(tiny_tree, tmp_path / "copy")
    assert fingerprint(find_graphs(tmp_path / "copy")) == whole
    assert fingerprint(reversed(files)) == whole


def test_a_file_packed_otherwise_agrees_and_one_value_changed_does_not(
    tiny_tree: Path, tmp_path: Path
) -> None:
    file = find_graphs(tiny_tree)[0]
    arrays = read_arrays(file.path.read_bytes())
    path = tmp_path / file.path.name
    path.write_bytes(repacked(dict(reversed(arrays.items()))))
    assert fingerprint([replace(file, path=path)]) == fingerprint([file])
    for key in arrays:
        changed = arrays[key].copy()
        changed.reshape(-1)[-1] += 1
        path.write_bytes(repacked(arrays, **{key: changed}))
        assert fingerprint([replace(file, path=path)]) != fingerprint([file]), key


def test_name_split_and_collection_count(tiny_tree: Path) -> None:
    files = find_graphs(tiny_tree)
    file = files[0]
    others = [
        [replace(file, name="other")],
        [replace(file, split="test")],
        [replace(file, collection=files[-1].collection)],
        [],
        files[:2],
    ]
    found = [fingerprint(other) for other in others]
    assert len({fingerprint([file]), *found}) == 6
