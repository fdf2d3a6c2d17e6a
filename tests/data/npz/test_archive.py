"""The archive reader reads the files of numpy and other packers, and rejects inconsistent ones."""

import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.npz.archive import HEADER_READERS, Archive
from tests.data.npz.damaged_archives import npy, packed, raw_npy

COUNTING = np.arange(600, dtype=np.int64).reshape(200, 3)


def write(folder: Path, content: bytes) -> Path:
    path = folder / "file.npz"
    path.write_bytes(content)
    return path


def read(path: Path, key: str = "a") -> np.ndarray:
    with Archive(path) as archive:
        return archive.array(key, dtype=np.int64, shape=(None, 3))


def row_chunks(path: Path, chunk_bytes: int) -> list[np.ndarray]:
    with Archive(path) as archive:
        chunks = archive.rows("a", dtype=np.int64, shape=(200, 3), chunk_bytes=chunk_bytes)
        return [np.frombuffer(content, np.int64).reshape(-1, 3) for content in chunks]


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
    chunks = row_chunks(path, chunk_bytes)
    np.testing.assert_array_equal(np.concatenate(chunks), COUNTING)
    assert all(len(chunk) <= max(1, chunk_bytes // 24) for chunk in chunks)


@pytest.mark.parametrize("form", ["<i4", ">i8", "<u2", "<f4", ">f8", "F"])
def test_equal_numbers_in_another_form_are_read(tmp_path: Path, form: str) -> None:
    values = np.asfortranarray(COUNTING) if form == "F" else COUNTING.astype(form)
    path = write(tmp_path, packed([("a.npy", npy(values))]))
    np.testing.assert_array_equal(read(path), COUNTING, strict=True)
    chunks = row_chunks(path, 100)
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


@pytest.mark.parametrize("shape", [(0, 2**62), (2**62, 0), (0, 10**30)])
def test_axis_of_length_0_does_not_hide_a_huge_one(tmp_path: Path, shape: tuple[int, int]) -> None:
    """An array of such a shape needs 0 bytes, as in the file, but numpy cannot create the array."""
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}}}\n"
    told = r"key 'a': has shape .*, which its bytes cannot hold"
    with (
        Archive(write(tmp_path, packed([("a.npy", raw_npy(header))]))) as archive,
        pytest.raises(PipelineError, match=told),
    ):
        archive.array("a", dtype=np.int64, shape=(None, None))


@contextmanager
def less_memory_than(n_bytes: float) -> Iterator[None]:
    tracemalloc.start()
    yield
    assert tracemalloc.get_traced_memory()[1] < n_bytes
    tracemalloc.stop()


def test_reading_does_not_change_the_warnings_of_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = []

    def read_header(stream: object) -> object:
        filters.append([*warnings.filters])
        return HEADER_READERS[1, 0](stream)

    monkeypatch.setattr("data.npz.archive.HEADER_READERS", {(1, 0): read_header})
    np.savez(tmp_path / "file.npz", a=COUNTING)
    read(tmp_path / "file.npz")
    assert filters == [warnings.filters]
