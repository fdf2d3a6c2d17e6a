"""Configs are packed as they are, whether they are skimmed or compared."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import data.packing.npz_graphs
from common.errors import PipelineError
from data.npz.read import Archive
from data.packing import config_encoder as spool
from data.packing import spool_rows
from data.packing.config_encoder import ConfigEncoder
from data.packing.configs import pack_values, packed
from data.packing.npz_graphs import encode_configs
from data.packing.spool_rows import LOOKED_AT

K = 6
ROWS_PER_CHUNK = 7
N_CHUNKS = 400


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    chunk_bytes = ROWS_PER_CHUNK * K * 72
    monkeypatch.setattr(data.packing.npz_graphs, "CONFIG_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(spool_rows, "SHORTEST_BYTES", 8 * chunk_bytes)
    monkeypatch.setattr(spool_rows, "LONGEST_BYTES", 64 * chunk_bytes)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return what will have become of each stretch that is skimmed."""
    found: list[bool] = []
    settle = ConfigEncoder.settle

    def recorded(spool: ConfigEncoder, checksum: int) -> bool:
        found.append(settle(spool, checksum))
        return found[-1]

    monkeypatch.setattr(ConfigEncoder, "settle", recorded)
    return found


def tied_configs() -> NDArray[np.float32]:
    """Draw configs (c, k, 18) of few vectors, whose nodes are tied in pairs."""
    rng = np.random.default_rng(0)
    vectors = rng.integers(-1, 6, (8, 18)).astype(np.float32)
    choice = rng.integers(0, 4, (N_CHUNKS * ROWS_PER_CHUNK, K // 2))
    choice[:4] = np.arange(4)[:, None]
    return vectors[np.repeat(choice, 2, axis=1)]


def check(configs: NDArray[np.float32], folder: Path) -> None:
    path = folder / "configs.npz"
    np.savez_compressed(path, node_config_feat=configs)
    with Archive(path) as archive, ConfigEncoder(configs.shape[1]) as filled:
        encode_configs(archive, len(configs), filled)
        assert filled.n_configs == len(configs)
        found = packed(filled)
    np.testing.assert_array_equal(found.rows(np.arange(len(configs))), configs)


def test_configs_that_bring_nothing_new_are_skimmed(tmp_path: Path, settled: list[bool]) -> None:
    check(tied_configs(), tmp_path)
    assert len(settled) > 3
    assert all(settled)


@pytest.mark.parametrize("n_cut", [1, 3, 7, 50])
def test_the_last_stretch_may_be_short(n_cut: int, tmp_path: Path, settled: list[bool]) -> None:
    check(tied_configs()[:-n_cut], tmp_path)
    assert all(settled)


@pytest.mark.parametrize("row", [300, 1000, N_CHUNKS * ROWS_PER_CHUNK - 1])
@pytest.mark.parametrize(
    "what", ["new vector", "tie broken", "minus zero", "hidden from the guess"]
)
def test_what_is_new_in_a_stretch_is_found(
    what: str, row: int, tmp_path: Path, settled: list[bool]
) -> None:
    configs = tied_configs()
    if what == "new vector":
        configs[row, 2:4] = 3
    elif what == "tie broken":
        others = configs[(configs[:, 2] != configs[row, 2]).any(axis=1), 2]
        configs[row, 3] = others[0]
    elif what == "minus zero":  # is read as 0, but its bytes are others
        configs[row][configs[row] == 0] = -0.0
    else:
        configs[row, 5] = configs[row, 5][::-1]  # in no first column of a group
    check(configs, tmp_path)
    assert True in settled
    assert settled.count(False) == 1


def test_a_stream_that_brings_news_for_ever_is_hardly_read_twice(
    tmp_path: Path, settled: list[bool]
) -> None:
    configs = tied_configs()
    configs[:: (LOOKED_AT + 2) * ROWS_PER_CHUNK, 0, 0] = -0.0
    configs[:: (LOOKED_AT + 2) * ROWS_PER_CHUNK, 1, 1] = -0.0
    check(configs, tmp_path)
    assert settled.count(False) == 1


@pytest.mark.parametrize("value", [np.nan, 0.5, 6.0, -2.0])
@pytest.mark.parametrize("row", [0, 900, 1700])
def test_a_bad_value_in_a_stretch_is_named(
    row: int, value: float, tmp_path: Path, settled: list[bool]
) -> None:
    configs = tied_configs()
    configs[row, 4, 9] = value
    configs[row + 1 :, 0, 3] = 100  # later ones are not named
    with pytest.raises(PipelineError, match=f"config {row}, node 4, value 9 is {value}; expected"):
        check(configs, tmp_path)
    assert settled[-1:] == ([False] if row else [])


@pytest.mark.parametrize("n_vectors", [1, 5, 3000])
def test_many_vectors_are_packed_by_a_search_as_by_a_table(
    n_vectors: int, tmp_path: Path, settled: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(n_vectors)
    vectors = rng.integers(-1, 6, (n_vectors, 18)).astype(np.float32)
    configs = vectors[rng.integers(0, n_vectors, (500, 7))]
    configs[:, 3] = configs[:, 1]
    check(configs, tmp_path)
    by_table = tables_of(configs)
    monkeypatch.setattr(spool, "TABLE_ENTRIES", 0)
    settled.clear()
    check(configs, tmp_path)
    assert not settled
    for want, got in zip(by_table, tables_of(configs), strict=True):
        np.testing.assert_array_equal(want, got)
        assert want.dtype == got.dtype


def tables_of(configs: NDArray[np.float32]) -> list[NDArray[np.generic]]:
    """Return all that is stored of configs."""
    found = pack_values(configs.astype(np.int8))
    return [*vars(found.alphabets).values(), found.indices, found.hashes]
