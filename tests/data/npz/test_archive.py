"""The archive reader reads the files of numpy and other packers, and rejects inconsistent ones."""

import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import PipelineError
from data.npz.archive import Archive
from tests.data.npz.damaged_archives import npy, packed, raw_npy

COUNTING = np.arange(600, dtype=np.int64).reshape(200, 3)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "file.npz"
    path.write_bytes(content)
    return path


def read(path: Path, key: str = "a") -> np.ndarray:
    with Archive(path) as archive:
        return archive.array(key, dtype=np.int64, shape=(None, 3))


def row_chunks(
    archive: Archive, key: str, *, shape: tuple[int | None, ...], **options: Any
) -> list[np.ndarray]:
    chunks = archive.rows(key, shape=shape, **options)
    return [np.frombuffer(content, options["dtype"]).reshape(-1, *shape[1:]) for content in chunks]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archive_of_numpy_is_read(tmp_path: Path, save) -> None:
    path = tmp_path / "file.npz"
    save(path, a=COUNTING, by_column=np.asfortranarray(COUNTING), none=COUNTING[:0])
    np.testing.assert_array_equal(read(path), COUNTING)
    np.testing.assert_array_equal(read(path, "by_column"), COUNTING)
    assert read(path, "none").shape == (0, 3)


@pytest.mark.parametrize("chunk_bytes", [1, 24, 100, 4800, 10**9])
def test_row_chunks_joined_are_the_array(tmp_path: Path, chunk_bytes: int) -> None:
    path = write(tmp_path, packed([("a.npy", npy(COUNTING))]))
    with Archive(path) as archive:
        chunks = list(
            row_chunks(archive, "a", dtype=np.int64, shape=(200, 3), chunk_bytes=chunk_bytes)
        )
    np.testing.assert_array_equal(np.concatenate(chunks), COUNTING)
    assert all(len(chunk) <= max(1, chunk_bytes // 24) for chunk in chunks)


@pytest.mark.parametrize("form", ["<i4", ">i8", "<u2", "<f4", ">f8", "F"])
def test_equal_numbers_in_another_form_are_read(tmp_path: Path, form: str) -> None:
    values = np.asfortranarray(COUNTING) if form == "F" else COUNTING.astype(form)
    path = write(tmp_path, packed([("a.npy", npy(values))]))
    found = read(path)
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, COUNTING)
    with Archive(path) as archive:
        chunks = row_chunks(archive, "a", dtype=np.int64, shape=(200, 3), chunk_bytes=100)
    assert {len(chunk) for chunk in chunks} == {4}
    np.testing.assert_array_equal(np.concatenate(chunks), COUNTING)


@pytest.mark.parametrize(
    ("value", "stored", "wanted"),
    [
        (2**63, "<u8", np.int64),
        (np.inf, "<f8", np.int64),
        (np.nan, "<f8", np.int64),
        (1.5, "<f4", np.int64),
        (-1, "<i8", np.uint8),
        (256, "<i8", np.uint8),
        (2**31 - 1, "<i4", np.float32),
        (0.1, "<f8", np.float32),
    ],
)
def test_numbers_that_the_right_dtype_cannot_hold_are_refused(
    tmp_path: Path, value: float, stored: str, wanted: type[np.generic]
) -> None:
    path = write(tmp_path, packed([("a.npy", npy(np.array([3, value], stored)))]))
    with Archive(path) as archive:
        told = f"with a value {np.array(value, stored)}; expected numbers that {wanted.__name__} "
        with pytest.raises(PipelineError) as caught:
            archive.array("a", dtype=wanted, shape=(2,))
        assert told in str(caught.value)
        with pytest.raises(PipelineError, match="has exactly"):
            list(archive.rows("a", dtype=wanted, shape=(2,)))


def test_rows_by_column_are_turned_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, packed([("a.npy", npy(np.asfortranarray(COUNTING)))]))
    monkeypatch.setattr("data.npz.archive.MAX_ARRAY_BYTES", COUNTING.nbytes - 1)
    line = "key 'a': has 4800 bytes; expected at most 4799, or configs stored row by row"
    with Archive(path) as archive, pytest.raises(PipelineError, match=line):
        list(archive.rows("a", dtype=np.int64, shape=(200, 3)))
    monkeypatch.undo()
    small = write(tmp_path, packed([("a.npy", npy(np.zeros(1 << 26, np.int8)))]))
    with (
        less_memory_than(1 << 20),
        Archive(small) as archive,
        pytest.raises(PipelineError, match="key 'a': has 536870912 bytes; expected at most"),
    ):
        archive.array("a", dtype=np.int64, shape=(None,))


def test_comment_and_members_of_macos_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = b"packed by hand"
        archive.writestr("__MACOSX/._a.npy", b"a resource fork")
        archive.writestr("a.npy", npy(COUNTING))
        for name in (".DS_Store", "__MACOSX/", "readme.txt"):
            archive.writestr(name, b"")
    np.testing.assert_array_equal(read(path), COUNTING)
    with Archive(path) as archive_read:
        assert archive_read.keys == ("a",)


def test_axis_of_length_0_does_not_hide_a_huge_one(tmp_path: Path) -> None:
    """An array of such a shape needs 0 bytes, as in the file, but numpy cannot create the array."""
    for shape in (0, 2**62), (2**62, 0), (0, 10**30):
        header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}\n"
        path = write(tmp_path, packed([("a.npy", raw_npy(header))]))
        with (
            Archive(path) as archive,
            pytest.raises(
                PipelineError, match=r"key 'a': has shape .*, which its bytes cannot hold"
            ),
        ):
            archive.array("a", dtype=np.int64, shape=(None, None))


@pytest.mark.slow
def test_member_of_more_than_4_gib_is_read(tmp_path: Path) -> None:
    """As the largest layout files hold; mostly zeros, so that it packs small."""
    n_rows = (2**32 + 2**20) // 1024
    block = np.zeros((n_rows // 1025, 128), dtype=np.int64)
    path = tmp_path / "file.npz"
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(block) * 1025}, 128)}}\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("a.npy", "b.npy"):
            with archive.open(name, "w", force_zip64=True) as member:
                if name == "b.npy":
                    member.write(npy(COUNTING))
                    continue
                member.write(raw_npy(header))
                for number in range(1025):
                    block[0] = number
                    member.write(block.tobytes())
    with Archive(path) as archive_read:
        chunks = row_chunks(archive_read, "a", dtype=np.int64, shape=(None, 128))
        total = sum(int(chunk[:, 0].sum()) for chunk in chunks)
        whole = archive_read.array("b", dtype=np.int64, shape=(200, 3))
    assert total == 1024 * 1025 // 2
    np.testing.assert_array_equal(whole, COUNTING)


@contextmanager
def less_memory_than(n_bytes: float) -> Iterator[None]:
    tracemalloc.start()
    yield
    assert tracemalloc.get_traced_memory()[1] < n_bytes
    tracemalloc.stop()
