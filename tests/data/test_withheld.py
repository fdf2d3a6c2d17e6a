"""Withheld runtimes come back as written; a missing or damaged file is one clear line."""

from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.withheld import WITHHELD, read_withheld, write_withheld
from tests.data.npz.damaged_archives import npy, packed

TILE, LAYOUT = "tile:xla:" + "a" * 32, "layout:nlp:random:" + "b" * 32
RUNTIMES = {TILE: np.array([5, 9], np.int64), LAYOUT: np.array([2**40, 7, 8], np.int64)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    normalizers = {TILE: np.array([5, 5], np.int64)}
    write_withheld(tmp_path / WITHHELD, RUNTIMES, normalizers=normalizers)
    runtimes, found = read_withheld(tmp_path)
    assert set(runtimes) == set(RUNTIMES)
    for name, values in RUNTIMES.items():
        assert runtimes[name].dtype == np.int64
        assert runtimes[name].tolist() == values.tolist()
    assert {k: v.tolist() for k, v in found.items()} == {TILE: [5, 5]}


def test_the_order_of_the_mapping_does_not_matter(tmp_path: Path) -> None:
    write_withheld(tmp_path / "a.npz", RUNTIMES)
    write_withheld(tmp_path / "b.npz", dict(reversed(RUNTIMES.items())))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"test_runtimes\.npz: no such file"):
        read_withheld(tmp_path)


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "flipped"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / WITHHELD
    write_withheld(path, {LAYOUT: np.arange(5000, dtype=np.int64)})
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes(255 - b for b in content[middle : middle + 40])
    path.write_bytes(
        {
            "empty": b"",
            "text": b"not an archive",
            "cut": content[:middle],
            "flipped": flipped + content[middle + 40 :],
        }[damage]
    )
    with pytest.raises(PipelineError, match=r"damaged|not a whole npz file") as raised:
        read_withheld(tmp_path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((2, 2), np.int64)])
def test_other_arrays_are_refused(tmp_path: Path, values: np.ndarray) -> None:
    path = tmp_path / WITHHELD
    path.parent.mkdir()
    np.savez(path, **{LAYOUT: values})
    with pytest.raises(PipelineError, match=rf"key '{LAYOUT}': has .*; expected (int64|\(any\))"):
        read_withheld(tmp_path)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / WITHHELD
    path.parent.mkdir()
    path.write_bytes(packed([(f"{LAYOUT}.npy", npy(np.array([{"a": 1}], object)))]))
    with pytest.raises(PipelineError, match="object array"):
        read_withheld(tmp_path)
