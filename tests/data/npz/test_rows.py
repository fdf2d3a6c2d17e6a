"""A reader of rows goes back to where it was, and what it reads is checked all the same."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from common.errors import PipelineError
from data.npz.read import Archive

VALUES = np.random.default_rng(0).integers(0, 4, (4000, 3))
ROW_BYTES = VALUES[0].nbytes


def opened(archive: Archive, chunk_rows: int):
    return archive.rows("a", dtype=np.int64, shape=(None, 3), chunk_bytes=chunk_rows * ROW_BYTES)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("chunk_rows", [1, 7, 4000])
def test_it_reads_on_from_where_it_was_any_number_of_times(
    save, chunk_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.npz.inflate.PACKED_CHUNK_BYTES", 100)
    save(tmp_path / "file.npz", a=VALUES)
    content = VALUES.tobytes()
    rng = np.random.default_rng(chunk_rows)
    with Archive(tmp_path / "file.npz") as archive, opened(archive, chunk_rows) as rows:
        position, place, marked = 0, rows.mark(), 0
        for _ in range(300):
            kind = rng.integers(0, 12)
            if kind == 0:
                place, marked = rows.mark(), position
            elif kind == 1:
                rows.go_back(place)
                position = marked
            else:
                chunk = rows.read()
                assert chunk == content[position : position + chunk_rows * ROW_BYTES]
                position += len(chunk)
            assert rows.left == len(content) - position
        rest = b"".join(iter(rows.read, b""))
        assert rest == content[position:]


def test_each_part_has_its_own_checksum(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "file.npz", a=VALUES)
    with Archive(tmp_path / "file.npz") as archive, opened(archive, 500) as rows:
        assert rows.end_part() == 0
        for n_chunks in (1, 3, 2):
            place = rows.mark()
            for _ in range(2):
                rows.go_back(place)
                content = b"".join(rows.read() for _ in range(n_chunks))
                assert rows.end_part() == zlib.crc32(content)
        rows.mark()  # ends a part as well
        content = rows.read()
        assert rows.end_part() == zlib.crc32(content)


def test_a_wrong_checksum_is_seen_behind_parts_that_were_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "file.npz"
    np.savez(path, a=VALUES)
    content = path.read_bytes()
    place = content.index(VALUES.tobytes()) + 30_000
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with (
        Archive(path) as archive,
        pytest.raises(PipelineError, match="key 'a': damaged: its checksum is wrong"),
        opened(archive, 500) as rows,
    ):
        rows.read()
        start = rows.mark()
        rows.read()
        rows.go_back(start)
        while rows.left:
            rows.read()
            rows.end_part()
