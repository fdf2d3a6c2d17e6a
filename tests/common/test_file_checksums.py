"""A file with a checksum of its own: any flipped bit is noticed."""

import zlib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from common.errors import PipelineError
from common.files import (
    UNSEALED,
    checksum_of,
    read_table,
    write_sealed,
    write_table,
)
from tests.data.npz.damaged_archives import flipped

TEXT = f'{{"weights": [0.25, 0.75], "checksum": "{UNSEALED}", "more": true}}'.encode()
TABLE = pl.DataFrame(
    {"graph": ["one", "two"] * 50, "score": np.linspace(0, 1, 100).astype(np.float32)}
)


def flips(content: bytes) -> list[bytes]:
    places = np.random.default_rng(0).permutation(8 * len(content))[:500].tolist()
    return [flipped(content, place // 8, 1 << place % 8) for place in places]


def test_seal_is_the_crc_32_of_the_unsealed_file(tmp_path: Path) -> None:
    digits = f"{zlib.crc32(TEXT):08x}"
    write_sealed(tmp_path / "file", TEXT)
    assert (tmp_path / "file").read_bytes() == TEXT.replace(b"00000000", digits.encode())
    assert checksum_of(TEXT) == digits


def test_flipped_bit_in_a_table_is_an_error_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    write_table(path, TABLE)
    assert pl.read_parquet(path).equals(TABLE)  # any other reader reads it
    refused = 0
    for content in flips(path.read_bytes()):
        path.write_bytes(content)
        try:
            assert read_table(path).equals(TABLE)
        except PipelineError as error:
            assert str(error).startswith(f"{path}: ")
            refused += 1
    assert refused > 450


def test_table_from_elsewhere_is_read_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    TABLE.write_parquet(path)
    assert read_table(path).equals(TABLE)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(PipelineError, match=r"table\.parquet: cannot be read: ") as error:
        read_table(path)
    assert "\n" not in str(error.value)
