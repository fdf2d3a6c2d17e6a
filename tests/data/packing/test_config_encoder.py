"""A stream of configs is packed to the same bits however it is cut, or refused with the place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from data.packing.config_encoder import ConfigEncoder, TiedColumns, pack_values
from data.packing.vectors import UnknownValueError
from tests.data.packing.references import (
    SLOT_BITS,
    as_chunks,
    check_packed,
    check_rows,
    check_same,
    config_tables,
    distinct_vectors,
    encoded,
    random_vectors,
    slots,
)

STEADY = settings(deadline=None, derandomize=True, max_examples=100)


@STEADY
@given(config_tables(), st.integers(1, 12), st.sampled_from(SLOT_BITS))
def test_any_configs_are_packed_as_by_the_reference(
    values: NDArray[np.int8], rows_per_chunk: int, bits: int
) -> None:
    with slots(bits):
        check_packed(encoded(values, rows_per_chunk=rows_per_chunk), values)


@STEADY
@given(config_tables())
def test_chunks_of_every_size_give_the_same_bits(values: NDArray[np.int8]) -> None:
    whole = encoded(values, rows_per_chunk=len(values))
    for rows_per_chunk in range(1, len(values)):
        check_same(encoded(values, rows_per_chunk=rows_per_chunk), whole)


@pytest.mark.parametrize("rows_per_chunk", [1, 7, 64, 299, 300])
def test_columns_that_part_in_the_last_row_were_stored_once_before(rows_per_chunk: int) -> None:
    rng = np.random.default_rng(0)
    values = np.repeat(random_vectors(rng, 300, 3), [1, 4, 5], axis=1)
    values[-1, 4] = values[-1, 9] = -1
    configs = encoded(values, rows_per_chunk=rows_per_chunk)
    assert configs.alphabets.column_of.tolist() == [0, 1, 1, 1, 2, 3, 3, 3, 3, 4]
    check_rows(configs, values)
    check_same(configs, pack_values(values))


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(np.zeros((5, 3, 18), np.int8), id="all zero"),
        pytest.param(np.full((5, 3, 18), -1, np.int8), id="all minus one"),
        pytest.param(np.full((4, 1, 18), 5, np.int8), id="one node, all equal"),
        pytest.param(np.zeros((1, 1, 18), np.int8), id="one config of one node"),
        pytest.param(random_vectors(np.random.default_rng(1), 1, 40), id="one config"),
        pytest.param(random_vectors(np.random.default_rng(2), 40, 1), id="one node"),
        pytest.param(random_vectors(np.random.default_rng(3), 30, 9), id="nothing equal"),
        pytest.param(np.arange(5).astype(np.int8).repeat(54).reshape(5, 3, 18), id="0 first"),
    ],
)
@pytest.mark.parametrize("rows_per_chunk", [1, 2, 40])
def test_the_smallest_and_plainest_tables_are_packed(
    values: NDArray[np.int8], rows_per_chunk: int
) -> None:
    check_packed(encoded(values, rows_per_chunk=rows_per_chunk), values)


@pytest.mark.parametrize(
    ("n_vectors", "dtype"),
    [(1, np.uint8), (256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.uint32)],
)
def test_indices_are_as_wide_as_the_longest_alphabet_of_a_column_needs(
    n_vectors: int, dtype: type[np.generic]
) -> None:
    letters = np.stack([np.arange(n_vectors), np.zeros(n_vectors, np.int64)], axis=1)
    values = distinct_vectors(n_vectors)[np.random.default_rng(4).permutation(letters)]
    configs = encoded(values, rows_per_chunk=20_000)
    assert configs.indices.dtype == dtype
    assert configs.alphabets.index_dtype == dtype
    assert configs.alphabets.sizes.tolist() == ([n_vectors, 1] if n_vectors > 1 else [1])
    check_rows(configs, values)


def test_a_graph_of_very_many_vectors_needs_narrow_indices_only() -> None:
    n_nodes, n_letters = 280, 250
    n_vectors = n_nodes * n_letters
    assert n_vectors > 2**16
    values = distinct_vectors(n_vectors).reshape(n_letters, n_nodes, 18)
    configs = encoded(values, rows_per_chunk=50)
    assert (configs.indices.dtype, configs.indices.shape) == (np.uint8, (n_letters, n_nodes))
    assert configs.vectors.shape == (n_vectors, 18)
    check_rows(configs, values)
    check_same(configs, encoded(values, rows_per_chunk=n_letters))


@pytest.mark.parametrize("bits", SLOT_BITS)
def test_thousands_of_vectors_that_share_slots_are_told_apart(bits: int) -> None:
    rng = np.random.default_rng(5)
    values = random_vectors(rng, 3000)[rng.integers(3000, size=(400, 20))]
    with slots(bits):
        configs = encoded(values, rows_per_chunk=57)
    assert configs.indices.dtype == np.uint16
    check_rows(configs, values)
    check_same(configs, pack_values(values))


@pytest.mark.parametrize("rows_per_chunk", [1, 5])
def test_a_bad_vector_of_a_legal_ones_code_is_refused_where_all_columns_are_tied(
    rows_per_chunk: int,
) -> None:
    values = np.zeros((5, 4, 18), np.float32)
    values[4, :, 2:4] = (-1, 1)
    values[4, 2, 2:4] = (6, 0)
    encoder = ConfigEncoder(4)
    with pytest.raises(UnknownValueError) as error:
        for content in as_chunks(values, rows_per_chunk):
            encoder.add(content)
    row = 4 % rows_per_chunk
    assert (error.value.vector, error.value.place, error.value.value) == (row * 4 + 2, 2, 6.0)


TABLES = arrays(
    np.int64, st.tuples(st.integers(0, 6), st.integers(1, 8)), elements=st.integers(0, 2)
)


def reference_ties(rows: NDArray[np.int64]) -> tuple[list[int], list[int]]:
    """Return the first column of each group, and each column's group."""
    first: list[int] = []
    group_of = []
    for column in range(rows.shape[1]):
        equal = [g for g, other in enumerate(first) if (rows[:, other] == rows[:, column]).all()]
        if not equal:
            first.append(column)
        group_of.append(equal[0] if equal else len(first) - 1)
    return first, group_of


@STEADY
@given(TABLES, st.integers(1, 6))
def test_ties_are_those_of_all_rows_however_these_come(
    rows: NDArray[np.int64], rows_per_chunk: int
) -> None:
    columns = TiedColumns.all_of(rows.shape[1])
    for start in range(0, len(rows), rows_per_chunk):
        columns = columns.split(rows[start : start + rows_per_chunk])
        seen = rows[: start + rows_per_chunk]
        assert (columns.first.tolist(), columns.group_of.tolist()) == reference_ties(seen)
        assert columns.first.dtype == columns.group_of.dtype == np.int64


@STEADY
@given(TABLES)
def test_rows_that_split_nothing_leave_the_same_object(rows: NDArray[np.int64]) -> None:
    columns = TiedColumns.all_of(rows.shape[1]).split(rows)
    assert columns.split(rows) is columns
    assert columns.split(rows[::-1]) is columns
    assert columns.split(np.full_like(rows, 1)) is columns


def test_columns_once_parted_stay_apart() -> None:
    columns = TiedColumns.all_of(3).split(np.asarray([[1, 1, 2]]))
    columns = columns.split(np.asarray([[7, 5, 7]]))
    assert (columns.first.tolist(), columns.group_of.tolist()) == ([0, 1, 2], [0, 1, 2])
