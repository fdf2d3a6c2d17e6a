"""Blocks come back as they were, in the smaller order of bytes; bad ones are refused."""

import sys

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import PipelineError
from data.graph_store.compression import MAX_BLOCK_BYTES, block_rows, import_zstandard, pack_block
from data.graph_store.compression import unpack_block as unpack
from data.npz.inflate import DamagedError

STEADY = settings(deadline=None, derandomize=True, max_examples=100)


@STEADY
@given(st.integers(1, 40), st.integers(0, 1500), st.integers(1, 256), st.integers(0, 2**32 - 1))
def test_any_block_comes_back_as_it_was(width: int, n_rows: int, top: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, top, n_rows * width, np.uint8)
    content = values.tobytes()
    used_width, packed = pack_block(content, width)
    assert used_width in (1, width)
    assert unpack(packed, len(content), used_width) == content


def test_columns_with_values_of_their_own_come_near_their_entropy() -> None:
    n_rows, n_columns = 20_000, 60
    random = np.random.default_rng(0)
    letters = random.integers(0, 256, (n_columns, 8)).astype(np.uint8)
    picked = random.choice(8, (n_rows, n_columns), p=[0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
    content = letters[np.arange(n_columns), picked].tobytes()
    entropy = 0.0
    for column in picked.T:
        shares = np.bincount(column) / n_rows
        entropy -= float((shares * np.log2(shares)).sum()) * n_rows / 8
    width, packed = pack_block(content, n_columns)
    assert width == n_columns
    assert entropy < len(packed) < 1.06 * entropy
    assert len(packed) < 0.8 * len(zstandard.ZstdCompressor(level=9).compress(content))


def test_rows_that_repeat_stay_rows() -> None:
    row = np.random.default_rng(0).integers(0, 256, 560, np.uint8).tobytes()
    width, packed = pack_block(row * 1000, len(row))
    assert width == 1
    assert len(packed) < 2 * len(row)


@pytest.mark.parametrize("width", [1, 7, 560, 1 << 14, MAX_BLOCK_BYTES])
def test_a_block_has_at_least_one_row_and_at_most_8_mib(width: int) -> None:
    assert 1 <= block_rows(width) <= MAX_BLOCK_BYTES // width


def test_a_frame_of_another_size_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(256 << 20))
    assert len(bomb) < 1 << 15
    with pytest.raises(DamagedError, match="would unpack to 268435456"):
        unpack(bomb, 1000, 1)


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    with pytest.raises(DamagedError, match="would unpack to"):
        unpack(stream.compress(bytes(1000)) + stream.flush(), 1000, 1)


@pytest.mark.parametrize("packed", [b"", b"no zstandard frame", pack_block(b"ab", 1)[1] + b"more"])
def test_what_is_no_single_frame_is_refused(packed: bytes) -> None:
    with pytest.raises(DamagedError):
        unpack(packed, 2, 1)


def test_a_width_that_cuts_no_whole_rows_is_refused() -> None:
    with pytest.raises(DamagedError, match="no whole rows of 3"):
        unpack(pack_block(b"abcd", 1)[1], 4, 3)


def test_a_machine_without_zstandard_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(PipelineError, match=r"zstandard cannot be imported .* pip install -r"):
        import_zstandard()
