"""A chunk agrees with its packed form exactly where spelling that out gives the same bytes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.packing.columns import TiedColumns
from data.packing.comparison import Comparison
from data.packing.vectors import VectorTable
from tests.data.packing.references import random_vectors

STEADY = settings(deadline=None, derandomize=True, max_examples=100)
N_NODES, N_VECTORS = 5, 3


def known_vectors(seed: int) -> VectorTable:
    """Return a table of a few vectors."""
    vectors = random_vectors(np.random.default_rng(seed), N_VECTORS).astype(np.float32)
    table = VectorTable()
    table.mend(vectors, table.guess(vectors))
    return table


@STEADY
@given(st.integers(0, 2**32), st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_packed_chunks_agree_and_changed_ones_do_not(seed: int, n_rows: list[int]) -> None:
    """One comparison serves chunks of all lengths, while columns part from each other."""
    rng = np.random.default_rng(seed)
    table, comparison, columns = known_vectors(seed), Comparison(), TiedColumns.all_of(N_NODES)
    for count in n_rows:
        if rng.random() < 0.5:
            columns = columns.split(rng.integers(2, size=(1, N_NODES)))
        ids = rng.integers(N_VECTORS, size=(count, len(columns.first)))
        configs = [[table.meant_by(row[[group]])[0] for group in columns.group_of] for row in ids]
        content = np.asarray(configs, np.float32).tobytes()
        assert comparison.agrees(content, ids, columns, table)
        if count:
            changed = bytearray(content)
            changed[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
            assert not comparison.agrees(bytes(changed), ids, columns, table)
            assert comparison.agrees(content, ids, columns, table)


def test_minus_zero_is_left_to_be_mended() -> None:
    zeros = np.zeros((1, 18), np.float32)
    table = VectorTable()
    table.mend(zeros, table.guess(zeros))
    ids, columns = np.zeros((1, 1), np.int64), TiedColumns.all_of(2)
    assert Comparison().agrees(np.zeros((1, 2, 18), np.float32).tobytes(), ids, columns, table)
    minus = np.full((1, 2, 18), -0.0, np.float32)
    assert not Comparison().agrees(minus.tobytes(), ids, columns, table)
