"""A stream of configs is packed to the same bits however it is cut, or refused with the place."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.packing import UnknownValueError
from tests.data.packing.references import (
    check_packed,
    check_rows,
    config_tables,
    distinct_vectors,
    encoded,
)

STEADY = settings(deadline=None, derandomize=True, max_examples=100)


@STEADY
@given(config_tables(), st.integers(1, 12))
def test_any_configs_are_packed_as_by_the_reference(
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
    assert configs.alphabets.sizes.tolist() == ([n_vectors, 1] if n_vectors > 1 else [1])
    check_rows(configs, values)


@pytest.mark.parametrize("rows_per_chunk", [1, 5])
@pytest.mark.parametrize(("bad", "node"), [(2, 2), (slice(None), 0)])
def test_a_bad_vector_of_a_legal_ones_code_is_refused_where_all_columns_are_tied(
    rows_per_chunk: int, bad: int | slice, node: int
) -> None:
    values = np.zeros((5, 4, 18), np.float32)
    values[4, :, 2:4] = (-1, 1)
    values[4, bad, 2:4] = (6, 0)
    with pytest.raises(UnknownValueError) as error:
        encoded(values, rows_per_chunk=rows_per_chunk)
    assert (error.value.vector, error.value.place, error.value.value) == (4 * 4 + node, 2, 6.0)
