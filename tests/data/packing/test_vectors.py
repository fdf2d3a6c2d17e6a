"""Layout vectors as numbers, and back; what is no layout vector is refused."""

import numpy as np
import pytest

from data.packing import (
    UnknownValueError,
    checked_codes,
    decoded,
    n_usual,
    vector_codes,
)
from tests.data.packing.references import random_vectors, reference_code


def test_a_code_is_the_number_that_the_values_spell_in_base_7() -> None:
    values = random_vectors(np.random.default_rng(0), 200)
    values[:3] = np.asarray([[-1], [5], [0]])
    codes = vector_codes(values)
    assert codes.tolist() == [reference_code(vector) for vector in values.tolist()]
    assert codes[:2].tolist() == [0, 7**18 - 1]
    np.testing.assert_array_equal(checked_codes(values.astype(np.float32)), codes)
    np.testing.assert_array_equal(decoded(codes), values)
    assert (codes.dtype, decoded(codes).dtype) == (np.int64, np.int8)


def test_usual_layouts_are_counted() -> None:
    left, rows, cube, scalar = [-1] * 6, [1, 0, *[-1] * 4], [2, 1, 0, -1, -1, -1], [0, *[-1] * 5]
    columns, shuffled = [0, 1, *[-1] * 4], [2, 0, 1, -1, -1, -1]
    named = [[left] * 3, [rows, cube, left], [scalar, left, rows], [rows, columns, left]]
    vectors = np.array([*named, [shuffled, left, left]], np.int8).reshape(5, 18)
    assert n_usual(vectors).tolist() == [0, 2, 2, -1, -1]


@pytest.mark.parametrize(
    ("bad", "legal"),
    [((6, 0), (-1, 1)), ((-2, 0), (5, -1)), ((13, 0), (-1, 2)), ((0.5, 3), (0, 3))],
)
def test_a_vector_with_the_code_of_a_legal_one_is_refused(
    bad: tuple[float, float], legal: tuple[int, int]
) -> None:
    wrong, right = np.zeros((2, 5, 18), np.float32)
    wrong[3, 7:9], right[3, 7:9] = bad, legal
    np.testing.assert_array_equal(vector_codes(wrong), vector_codes(right))
    with pytest.raises(UnknownValueError) as error:
        checked_codes(wrong)
    assert (error.value.vector, error.value.place, error.value.value) == (3, 7, bad[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 256.0, 258.0, -257.0, 2.0**40, 5.000001])
def test_a_number_far_from_any_layout_value_is_refused(bad: float) -> None:
    values = np.zeros((2, 18), np.float32)
    values[1, 17] = bad
    with pytest.raises(UnknownValueError, match="vector 1, value 17"):
        checked_codes(values)
