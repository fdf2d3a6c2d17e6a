"""Packed configs give back the rows of the file, bit for bit; files with bad values are refused."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import data.packing
from common.errors import PipelineError
from data.npz.archive import Archive
from data.npz.graphs import encode_configs
from data.packing import PackedConfigs, pack_values, vector_codes, vector_hashes
from tests.data.packing.references import (
    check_rows,
    check_same,
    config_tables,
    random_vectors,
)

STEADY = settings(deadline=None, derandomize=True, max_examples=100)
KEY = "node_config_feat"


@STEADY
@given(config_tables(), st.lists(st.integers(0, 2**20), max_size=20))
def test_rows_come_in_the_order_asked_for_and_as_often(
    values: NDArray[np.int8], asked: list[int]
) -> None:
    index = np.asarray(asked, np.int64) % len(values)
    configs = pack_values(values)
    rows = configs.rows(index)
    assert (rows.dtype, rows.shape) == (np.int8, (len(index), *values.shape[1:]))
    for row, config in zip(rows, index.tolist(), strict=True):
        assert row.tobytes() == values[config].tobytes()
    ids = configs.vector_ids(index)
    assert (ids.dtype, ids.shape) == (np.int64, (len(index), values.shape[1]))
    np.testing.assert_array_equal(configs.vectors[ids], rows)


def write_configs(path: Path, values: NDArray[np.generic]) -> Path:
    """Write an archive of configs (c, k, 18) and nothing else."""
    np.savez_compressed(path, node_config_feat=values.astype(np.float32))
    return path


def read_configs(path: Path, n_configs: int, n_configurable: int) -> PackedConfigs:
    with Archive(path) as archive:
        return encode_configs(archive, n_configs, n_configurable)


@pytest.mark.parametrize("chunk_bytes", [1, 3 * 5 * 72, 7 * 5 * 72 + 1, 1 << 20])
def test_minus_zero_in_a_file_is_read_as_zero(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.packing, "CHUNK_BYTES", chunk_bytes)
    values = random_vectors(np.random.default_rng(2), 20, 5)
    floats = values.astype(np.float32)
    floats[(values == 0) & (np.arange(20) % 3 > 0)[:, None, None]] = -0.0
    assert np.signbit(floats[floats == 0]).any()
    configs = read_configs(write_configs(tmp_path / "configs.npz", floats), 20, 5)
    check_rows(configs, values)
    check_same(configs, pack_values(values))


@pytest.mark.parametrize("chunk_bytes", [1, 4 * 6 * 72, 5 * 6 * 72 + 100, 1 << 20])
@pytest.mark.parametrize(
    ("where", "value"),
    [
        ((0, 0, 0), np.nan),
        ((0, 5, 17), np.inf),
        ((3, 2, 4), 0.5),
        ((9, 0, 17), -np.inf),
        ((19, 5, 0), 6),
        ((12, 4, 9), -2),
        ((18, 1, 1), 13),
        ((2, 3, 1), 4.9999995),
        ((17, 2, 0), 1e-30),
        ((1, 4, 16), 261),
    ],
)
def test_the_error_names_config_node_and_value_wherever_the_chunks_begin(
    where: tuple[int, int, int],
    value: float,
    chunk_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data.packing, "CHUNK_BYTES", chunk_bytes)
    floats = np.repeat(random_vectors(np.random.default_rng(3), 20, 2), 3, axis=1)  # tied columns
    floats = floats.astype(np.float32)
    config, node, place = where
    floats[where] = value
    shown = float(floats[where])
    floats[config + 1 :, :, 3] = 100  # later ones are not named
    path = write_configs(tmp_path / "configs.npz", floats)
    with pytest.raises(PipelineError) as error:
        read_configs(path, 20, 6)
    assert str(error.value) == (
        f"{path}: key '{KEY}': config {config}, node {node}, value {place} is {shown}; "
        "expected a whole number -1..5"
    )


def test_all_configs_of_few_vectors_do_not_collide() -> None:
    """Nearly equal configs, moved ones and exchanged ones among them."""
    vectors = np.full((12, 18), -1, np.int8)
    vectors[np.arange(1, 12), np.arange(11)] = 0  # each differs from the first in one value by 1
    codes = vector_codes(vectors)[np.asarray(list(itertools.product(range(12), repeat=5)))]
    assert len(codes) == 12**5 > 200_000
    hashes = vector_hashes(np.arange(5), codes).sum(axis=1, dtype=np.uint64)
    assert len(np.unique(hashes)) == len(codes)
