"""Ties between columns against comparing each column with each."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from data.packing.columns import TiedColumns

STEADY = settings(deadline=None, derandomize=True, max_examples=150)
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
