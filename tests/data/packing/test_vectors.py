"""The table of layout vectors against a dictionary; what is no layout vector is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.packing.vectors import UnknownValueError, VectorTable, decoded, vector_codes
from tests.data.packing.references import SLOT_BITS, random_vectors, reference_code, slots

STEADY = settings(deadline=None, derandomize=True, max_examples=60)


def learned(table: VectorTable, values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Give vectors (v, 18) ids as the encoder does."""
    words = words_of(values)
    ids = table.guess(words)
    table.mend(words, ids)
    return ids


def words_of(values: NDArray[np.generic]) -> NDArray[np.uint64]:
    """Return vectors (v, 18) as the file has them, in words (v, 9)."""
    return np.ascontiguousarray(values, np.float32).view(np.uint64)


def test_a_code_is_the_number_that_the_values_spell_in_base_7() -> None:
    values = random_vectors(np.random.default_rng(0), 200)
    values[:3] = np.asarray([[-1], [5], [0]])
    codes = vector_codes(values)
    assert codes.tolist() == [reference_code(vector) for vector in values.tolist()]
    assert codes[:2].tolist() == [0, 7**18 - 1]
    np.testing.assert_array_equal(vector_codes(values.astype(np.float32)), codes)
    np.testing.assert_array_equal(decoded(codes), values)
    assert (codes.dtype, decoded(codes).dtype) == (np.int64, np.int8)


@STEADY
@given(
    st.integers(0, 2**32),
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=5),
    st.sampled_from(SLOT_BITS),
)
def test_ids_are_those_of_a_dictionary_however_few_slots_there_are(
    seed: int, chunks: list[list[int]], bits: int
) -> None:
    alphabet = random_vectors(np.random.default_rng(seed), 10)
    alphabet[0] = 0
    seen: dict[tuple[int, ...], int] = {}
    with slots(bits):
        table = VectorTable()
        for letters in chunks:
            values = alphabet[letters]
            ids = learned(table, values)
            for vector, index in zip(map(tuple, values.tolist()), ids.tolist(), strict=True):
                assert seen.setdefault(vector, index) == index
            assert table.meant_by(ids).tobytes() == words_of(values).tobytes()
            np.testing.assert_array_equal(table.codes[ids], vector_codes(values))
            assert sorted(seen.values()) == list(range(len(table.codes)))


def test_most_vectors_are_guessed_right_alone_as_in_company() -> None:
    values = words_of(random_vectors(np.random.default_rng(2), 3000))
    table = VectorTable()
    ids = learned(table, values.view(np.float32))
    guessed = table.guess(values)
    assert (guessed == ids).mean() > 0.99
    for start, stop in ((0, 1), (1, 2), (7, 50), (11, 2000)):
        part = np.ascontiguousarray(values[start:stop])
        np.testing.assert_array_equal(table.guess(part), guessed[start:stop])


@pytest.mark.parametrize("n_bad", [1, 10**9])
def test_vectors_in_one_slot_are_told_apart_by_new_weights_or_without(
    n_bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = VectorTable._draw_weights, iter(range(10**9))
    monkeypatch.setattr(
        VectorTable, "_draw_weights", lambda table: draw(table) * np.uint64(next(drawn) >= n_bad)
    )
    values = random_vectors(np.random.default_rng(4), 40).astype(np.float32)
    table = VectorTable()
    for part in (values[:20], values[10:30], values[::-1], values):
        ids = learned(table, part)
        assert table.meant_by(ids).tobytes() == part.tobytes()
    assert len(table.codes) == 40 and next(drawn) > 1
    assert (n_bad > 1) or (table.guess(words_of(values)) == learned(table, values)).all()


@pytest.mark.parametrize(
    ("bad", "legal"),
    [((6, 0), (-1, 1)), ((-2, 0), (5, -1)), ((13, 0), (-1, 2)), ((0.5, 3), (0, 3))],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_a_vector_with_the_code_of_a_legal_one_is_refused(
    bad: tuple[float, float], legal: tuple[int, int], is_known: bool
) -> None:
    wrong, right = np.zeros((2, 5, 18), np.float32)
    wrong[3, 7:9], right[3, 7:9] = bad, legal
    np.testing.assert_array_equal(vector_codes(wrong), vector_codes(right))
    for bits in SLOT_BITS:
        with slots(bits):
            table = VectorTable()
            learned(table, right if is_known else right[:1])
            with pytest.raises(UnknownValueError) as error:
                learned(table, wrong)
        assert (error.value.vector, error.value.place) == (3, 7)
        assert error.value.value == bad[0]
