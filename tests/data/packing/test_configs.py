"""Packed configs give back the rows of the file, bit for bit; files with bad values are refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import data.packing.npz_graphs
from common.errors import PipelineError
from data.npz.read import Archive
from data.packing.config_encoder import pack_values
from data.packing.configs import PackedConfigs
from data.packing.npz_graphs import encode_configs
from data.read import read_layout
from data.tree import GraphFile
from tests.data.packing.references import (
    check_rows,
    check_same,
    config_tables,
    random_vectors,
)
from tests.real_data import real_file, real_files, requires_real_data

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
    monkeypatch.setattr(data.packing.npz_graphs, "CONFIG_CHUNK_BYTES", chunk_bytes)
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
    ],
)
def test_the_error_names_config_node_and_value_wherever_the_chunks_begin(
    where: tuple[int, int, int],
    value: float,
    chunk_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data.packing.npz_graphs, "CONFIG_CHUNK_BYTES", chunk_bytes)
    floats = np.repeat(random_vectors(np.random.default_rng(3), 20, 2), 3, axis=1)  # tied columns
    floats = floats.astype(np.float32)
    config, node, place = where
    floats[where] = value
    floats[config + 1 :, :, 3] = 100  # later ones are not named
    path = write_configs(tmp_path / "configs.npz", floats)
    with pytest.raises(PipelineError) as error:
        read_configs(path, 20, 6)
    assert str(error.value) == (
        f"{path}: key '{KEY}': config {config}, node {node}, value {place} is {float(value)}; "
        "expected a whole number -1..5"
    )


@requires_real_data
@pytest.mark.parametrize("file", real_files("layout"), ids=lambda file: file.submission_id[:40])
def test_real_configs_come_back_exactly_and_are_told_apart(file: GraphFile) -> None:
    configs = read_layout(file).configs
    with np.load(file.path) as archive:
        floats = archive[KEY]
    n_configs, n_nodes = floats.shape[:2]
    assert (configs.n_configs, configs.n_configurable) == (n_configs, n_nodes)
    names: dict[bytes, int] = {}
    for start in range(0, n_configs, 100):
        index = np.arange(start, min(start + 100, n_configs))
        rows = configs.rows(index)
        assert rows.astype(np.float32).tobytes() == floats[index].tobytes()
        for row, value in zip(rows, configs.content_hashes()[index].tolist(), strict=True):
            assert names.setdefault(row.tobytes(), value) == value
    assert len(set(names.values())) == len(names)


@requires_real_data
@pytest.mark.parametrize(
    ("submission_id", "n_vectors", "n_columns"),
    [
        ("layout:xla:default:unet3d", 14, 7),
        ("layout:xla:default:unet_3d.4x4.bf16", 20, 8),
        ("layout:xla:default:cd708819d3f5103afd6460b15e74eaf3", 31, 17),
        ("layout:xla:random:openai_v0_rnn_optimized", 20, 20),
        ("layout:nlp:default:3a0c5517a87df8d82fd637b83298a3ba", 121, 26),
        ("layout:nlp:random:23559853d9702baaaacbb0c83fd32266", 62, 15),
    ],
)
def test_real_graphs_have_few_distinct_vectors_and_columns(
    submission_id: str, n_vectors: int, n_columns: int
) -> None:
    file = real_file(submission_id)
    configs = read_layout(file).configs
    assert isinstance(configs, PackedConfigs)
    with np.load(file.path) as archive:
        values = archive[KEY].astype(np.int8)
    by_node = np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(values.shape[1], -1)
    assert n_columns == len({column.tobytes() for column in by_node}) == configs.indices.shape[1]
    vectors = {vector.tobytes() for vector in values.reshape(-1, 18)}
    assert n_vectors == len(vectors) == len(configs.vectors)
