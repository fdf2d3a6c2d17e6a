"""Packing as slowly and plainly as can be, and configs of every kind to pack."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.packing import ConfigEncoder, PackedConfigs

WORD = 2**64


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


@dataclass(frozen=True)
class ReferencePacking:
    codes: list[int]  # of the distinct vectors
    column_of: list[int]  # by node
    letters: list[list[int]]  # by stored column, positions in `codes`
    indices: list[list[int]]  # by config and stored column
    hashes: list[int]  # by config

    @classmethod
    def of(cls, values: NDArray[np.int8]) -> Self:
        """Pack configs (c, k, 18) with lists alone."""
        configs = [[reference_code(vector) for vector in config] for config in values.tolist()]
        codes = sorted({code for config in configs for code in config})
        columns: list[list[int]] = []
        column_of = []
        for node in range(values.shape[1]):
            column = [config[node] for config in configs]
            if column not in columns:
                columns.append(column)
            column_of.append(columns.index(column))
        letters = [[code for code in codes if code in column] for column in columns]
        return cls(
            codes=codes,
            column_of=column_of,
            letters=[[codes.index(code) for code in alphabet] for alphabet in letters],
            indices=[
                [letters[m].index(column[row]) for m, column in enumerate(columns)]
                for row in range(len(configs))
            ],
            hashes=[reference_hash(config) for config in configs],
        )


def check_packed(configs: PackedConfigs, values: NDArray[np.int8]) -> None:
    want = ReferencePacking.of(values)
    alphabets = configs.alphabets
    assert (configs.n_configs, configs.n_configurable) == values.shape[:2]
    assert alphabets.codes.tolist() == want.codes
    assert alphabets.column_of.tolist() == want.column_of
    assert alphabets.sizes.tolist() == [len(letters) for letters in want.letters]
    longest = max(len(letters) for letters in want.letters)
    padded = [letters + [0] * (longest - len(letters)) for letters in want.letters]
    assert alphabets.vectors.tolist() == padded
    assert configs.indices.tolist() == want.indices
    assert configs.content_hashes().tolist() == want.hashes
    check_rows(configs, values)


def check_rows(configs: PackedConfigs, values: NDArray[np.int8]) -> None:
    rows = configs.rows(np.arange(len(values)))
    assert (rows.dtype, rows.shape) == (np.dtype(np.int8), values.shape)
    assert rows.tobytes() == values.tobytes()


def check_same(one: PackedConfigs, other: PackedConfigs) -> None:
    for mine, its in zip(_arrays(one), _arrays(other), strict=True):
        assert (mine.dtype, mine.shape) == (its.dtype, its.shape)
        assert mine.tobytes() == its.tobytes()


def _arrays(configs: PackedConfigs) -> list[NDArray[Any]]:
    alphabets = configs.alphabets
    return [
        *(alphabets.codes, alphabets.column_of, alphabets.vectors, alphabets.sizes),
        *(configs.indices, configs.content_hashes()),
    ]


def as_chunks(values: NDArray[Any], rows_per_chunk: int) -> list[bytes]:
    """Return configs (c, k, 18) as they come from a file, some rows at a time."""
    floats = values.astype(np.float32)
    starts = range(0, len(floats), rows_per_chunk)
    return [floats[start : start + rows_per_chunk].tobytes() for start in starts]


def encoded(values: NDArray[Any], *, rows_per_chunk: int) -> PackedConfigs:
    """Pack configs (c, k, 18) as they are packed from a file."""
    encoder = ConfigEncoder(values.shape[1])
    for content in as_chunks(values, rows_per_chunk):
        encoder.add(content)
    return encoder.packed()


def random_vectors(rng: np.random.Generator, *shape: int) -> NDArray[np.int8]:
    """Draw layout vectors (*shape, 18)."""
    return rng.integers(-1, 6, (*shape, 18)).astype(np.int8)


def distinct_vectors(n_vectors: int) -> NDArray[np.int8]:
    """Return (u, 18) vectors of which no two are equal, far from each other and near."""
    n_digits = max(1, math.ceil(math.log(n_vectors, 7)))
    digits = np.arange(n_vectors)[:, None] // 7 ** np.arange(n_digits) % 7
    values = np.full((n_vectors, 18), -1, np.int8)
    values[:, 18 - n_digits :] = digits - 1
    return values


@st.composite
def config_tables(draw: st.DrawFn) -> NDArray[np.int8]:
    """Draw configs (c, k, 18): few vectors, tied columns, some of which part in a late row."""
    n_configs, n_nodes = draw(st.integers(1, 12)), draw(st.integers(1, 7))
    n_letters, n_groups = draw(st.integers(1, 5)), draw(st.integers(1, n_nodes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    alphabet = random_vectors(rng, n_letters)
    if draw(st.booleans()):
        alphabet[0] = draw(st.sampled_from([-1, 0, 5]))
    letters = rng.integers(n_letters, size=(n_configs, n_groups))
    letters = letters[:, rng.integers(n_groups, size=n_nodes)]
    n_free = draw(st.integers(0, min(2, n_configs)))
    letters[n_configs - n_free :] = rng.integers(n_letters, size=(n_free, n_nodes))
    values: NDArray[np.int8] = alphabet[letters]
    return values
