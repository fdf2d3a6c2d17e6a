"""Packing of configs equals a slow reference, whatever the size of the chunks.

Unpacked configs equal the rows of the file. An invalid layout vector is rejected with its place.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import data.graphs.packing
from common.errors import PipelineError
from data.graphs.packing import ConfigEncoder, PackedConfigs, n_usual, pack_values
from data.npz.archive import Archive
from data.npz.graphs import encode_configs

WORD = 2**64
STEADY = settings(deadline=None, derandomize=True, max_examples=50)


def reference_code(vector: list[int]) -> int:
    """Read a vector's 18 values as the digits of a number in base 7, the lowest first."""
    return sum((int(value) + 1) * 7**place for place, value in enumerate(vector))


def reference_mix(value: int) -> int:
    """Return the finaliser of splitmix64, as published."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % WORD
    return value ^ (value >> 31)


def reference_hash(codes: list[int]) -> int:
    """Hash one config, given as the code of each node's vector."""
    golden = 0x9E3779B97F4A7C15
    return (
        sum(
            reference_mix(reference_mix((node + 1) * golden % WORD) ^ (code * golden % WORD))
            for node, code in enumerate(codes)
        )
        % WORD
    )


def check_packed(configs: PackedConfigs, values: NDArray[np.int8]) -> None:
    """Compare with configs (c, k, 18) that are packed with lists alone."""
    rows = [[reference_code(vector) for vector in config] for config in values.tolist()]
    columns = list(zip(*rows, strict=True))
    distinct = list(dict.fromkeys(columns))
    codebooks = configs.codebooks
    assert (configs.n_configs, configs.n_configurable) == values.shape[:2]
    assert codebooks.codes.tolist() == sorted({code for row in rows for code in row})
    assert codebooks.column_of.tolist() == [distinct.index(column) for column in columns]
    assert codebooks.sizes.tolist() == [len({*column}) for column in distinct]
    assert configs.content_hashes().tolist() == [reference_hash(row) for row in rows]
    check_rows(configs, values)


def check_rows(configs: PackedConfigs, values: NDArray[np.int8]) -> None:
    same_bits(configs.rows(np.arange(len(values))), values)


def check_same(left: PackedConfigs, right: PackedConfigs) -> None:
    for name, values in vars(left.codebooks).items():
        same_bits(values, getattr(right.codebooks, name), name)
    same_bits(left.indices, right.indices)


def same_bits(left: NDArray[Any], right: NDArray[Any], name: str = "") -> None:
    assert (left.dtype, left.shape) == (right.dtype, right.shape), name
    assert left.tobytes() == right.tobytes(), name


def random_vectors(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    """Draw layout vectors (*shape, 18)."""
    return rng.integers(-1, 6, (*shape, 18)).astype(np.int8)


def distinct_vectors(n_vectors: int) -> NDArray[np.int8]:
    """Return (u, 18) vectors of which no two are equal."""
    digits = np.arange(n_vectors)[:, None] // 7 ** np.arange(18) % 7
    return (digits - 1).astype(np.int8)


@st.composite
def config_tables(draw: st.DrawFn) -> NDArray[np.int8]:
    """Draw configs (c, k, 18): few vectors, tied columns, some of which part in a late row."""
    n_configs, n_nodes = draw(st.integers(1, 12)), draw(st.integers(1, 7))
    n_letters, n_groups = draw(st.integers(1, 5)), draw(st.integers(1, n_nodes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    codebook = random_vectors(rng, n_letters)
    if draw(st.booleans()):
        codebook[0] = draw(st.sampled_from([-1, 0, 5]))
    letters = rng.integers(n_letters, size=(n_configs, n_groups))
    letters = letters[:, rng.integers(n_groups, size=n_nodes)]
    n_free = draw(st.integers(0, min(2, n_configs)))
    letters[n_configs - n_free :] = rng.integers(n_letters, size=(n_free, n_nodes))
    values: NDArray[np.int8] = codebook[letters]
    return values


def test_usual_layouts_are_counted() -> None:
    left, rows, cube, scalar = [-1] * 6, [1, 0, *[-1] * 4], [2, 1, 0, -1, -1, -1], [0, *[-1] * 5]
    columns, shuffled = [0, 1, *[-1] * 4], [2, 0, 1, -1, -1, -1]
    named = [[left] * 3, [rows, cube, left], [scalar, left, rows], [rows, columns, left]]
    vectors = np.array([*named, [shuffled, left, left]], np.int8).reshape(5, 18)
    assert n_usual(vectors).tolist() == [0, 2, 2, -1, -1]


@STEADY
@given(config_tables(), st.integers(1, 12))
def test_any_configs_are_packed_as_by_the_reference(
    values: NDArray[np.int8], rows_per_chunk: int
) -> None:
    encoder, floats = ConfigEncoder(values.shape[1]), values.astype(np.float32)
    for start in range(0, len(floats), rows_per_chunk):
        encoder.add(floats[start : start + rows_per_chunk].tobytes())
    check_packed(encoder.packed(), values)


@pytest.mark.parametrize(
    ("n_vectors", "dtype"),
    [(1, np.uint8), (256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.uint32)],
)
def test_indices_have_the_narrowest_type(n_vectors: int, dtype: type[np.generic]) -> None:
    letters = np.stack([np.arange(n_vectors), np.zeros(n_vectors, np.int64)], axis=1)
    values = distinct_vectors(n_vectors)[np.random.default_rng(4).permutation(letters)]
    configs = pack_values(values)
    assert configs.indices.dtype == dtype
    assert configs.codebooks.sizes.tolist() == ([n_vectors, 1] if n_vectors > 1 else [1])
    check_rows(configs, values)


@STEADY
@given(config_tables(), st.lists(st.integers(0, 2**20), max_size=20))
def test_rows_come_in_the_requested_order(values: NDArray[np.int8], asked: list[int]) -> None:
    index = np.asarray(asked, np.int64) % len(values)
    configs = pack_values(values)
    np.testing.assert_array_equal(configs.rows(index), values[index], strict=True)
    np.testing.assert_array_equal(configs.vectors[configs.vector_ids(index)], values[index])


def write_configs(path: Path, values: NDArray[np.generic]) -> Path:
    """Write an archive of configs (c, k, 18) and nothing else."""
    np.savez_compressed(path, node_config_feat=values.astype(np.float32))
    return path


def read_configs(path: Path, n_configs: int, n_configurable: int) -> PackedConfigs:
    with Archive(path) as archive:
        return encode_configs(archive, n_configs, n_configurable)


@pytest.mark.parametrize("chunk_bytes", [1, 7 * 5 * 72 + 1, 1 << 20])
def test_minus_zero_in_a_file_is_read_as_zero(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.graphs.packing, "CHUNK_BYTES", chunk_bytes)
    values = random_vectors(np.random.default_rng(2), 20, 5)
    floats = values.astype(np.float32)
    floats[(values == 0) & (np.arange(20) % 3 > 0)[:, None, None]] = -0.0
    assert np.signbit(floats[floats == 0]).any()
    configs = read_configs(write_configs(tmp_path / "configs.npz", floats), 20, 5)
    check_rows(configs, values)
    check_same(configs, pack_values(values))


@pytest.mark.parametrize("chunk_bytes", [1, 5 * 6 * 72 + 100])
@pytest.mark.parametrize(
    ("where", "value"),
    [
        ((0, 0, 0), np.nan),
        ((0, 5, 17), np.inf),
        ((3, 2, 4), 0.5),
        ((19, 5, 0), 6),
        ((12, 4, 9), -2),
        ((2, 3, 1), 4.9999995),
        ((1, 4, 16), 261),
    ],
)
def test_error_names_config_node_and_value(
    where: tuple[int, int, int],
    value: float,
    chunk_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(data.graphs.packing, "CHUNK_BYTES", chunk_bytes)
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
        f"{path}: key 'node_config_feat': config {config}, node {node}, value {place} is {shown}; "
        "expected a whole number -1..5"
    )
