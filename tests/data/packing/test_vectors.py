"""The table of layout vectors against a dictionary; what is no layout vector is refused."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.packing.vectors import (
    UnknownValueError,
    VectorTable,
    decoded,
    vector_codes,
)
from tests.data.packing.references import SLOT_BITS, random_vectors, reference_code, slots

STEADY = settings(deadline=None, derandomize=True, max_examples=60)
BAD_VALUES = [np.nan, -np.nan, np.inf, -np.inf, 0.5, 4.9999995, 1e-30, 6, -2, 261, 3e38, -3e38]


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


@pytest.mark.parametrize("n_before", [0, 1, 5])
def test_vectors_of_zeros_get_an_id_of_their_own(n_before: int) -> None:
    values = np.zeros((n_before + 1, 18), np.int8)
    values[n_before, 3] = 4
    for order in (values, values[::-1]):
        table = VectorTable()
        ids = learned(table, order)
        np.testing.assert_array_equal(decoded(table.codes[ids]), order)
    table = VectorTable()
    assert learned(table, np.zeros((1, 18))).tolist() == [0]
    assert decoded(table.codes).tolist() == [[0] * 18]


def test_minus_zero_has_the_id_of_zero() -> None:
    values = random_vectors(np.random.default_rng(1), 50).astype(np.float32)
    table = VectorTable()
    ids = learned(table, values)
    minus = np.where(values == 0, np.float32(-0.0), values)
    assert minus.tobytes() != values.tobytes()
    np.testing.assert_array_equal(learned(table, minus), ids)
    np.testing.assert_array_equal(learned(VectorTable(), minus), learned(VectorTable(), values))
    assert not np.signbit(table.meant_by(ids).view(np.float32)[values == 0]).any()


def test_most_vectors_are_guessed_right_alone_as_in_company() -> None:
    values = words_of(random_vectors(np.random.default_rng(2), 3000))
    table = VectorTable()
    ids = learned(table, values.view(np.float32))
    guessed = table.guess(values)
    assert (guessed == ids).mean() > 0.99
    for start, stop in ((0, 1), (1, 2), (7, 50), (11, 2000)):
        part = np.ascontiguousarray(values[start:stop])
        np.testing.assert_array_equal(table.guess(part), guessed[start:stop])


def test_weights_that_put_vectors_into_one_slot_are_drawn_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = VectorTable._draw_weights
    n_drawn = 0

    def bad_at_first(table: VectorTable) -> NDArray[np.uint64]:
        nonlocal n_drawn
        n_drawn += 1
        return draw(table) * np.uint64(n_drawn > 1)

    monkeypatch.setattr(VectorTable, "_draw_weights", bad_at_first)
    values = random_vectors(np.random.default_rng(3), 40).astype(np.float32)
    table = VectorTable()
    ids = learned(table, values)
    assert n_drawn > 1
    np.testing.assert_array_equal(table.guess(words_of(values)), ids)


def test_vectors_that_never_part_are_told_apart_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(VectorTable, "_draw_weights", lambda _: np.zeros(9, np.uint64))
    values = random_vectors(np.random.default_rng(4), 40).astype(np.float32)
    table = VectorTable()
    for part in (values[:20], values[10:30], values[::-1], values):
        ids = learned(table, part)
        assert table.meant_by(ids).tobytes() == part.tobytes()
    assert len(table.codes) == 40


@pytest.mark.parametrize("value", BAD_VALUES)
@pytest.mark.parametrize("n_known", [0, 30])
def test_a_bad_value_is_named_with_its_place_and_without_a_warning(
    value: float, n_known: int
) -> None:
    values = random_vectors(np.random.default_rng(5), 30).astype(np.float32)
    for vector, place in ((0, 0), (0, 17), (13, 4), (29, 0), (29, 17)):
        table = VectorTable()
        learned(table, values[:n_known])
        bad = values.copy()
        bad[vector, place] = value
        bad[vector, place + 1 :] = np.nan  # what comes later is not what is named
        bad[vector + 1 :] = 0.25
        with warnings.catch_warnings(), pytest.raises(UnknownValueError) as error:
            warnings.simplefilter("error")
            learned(table, bad)
        assert (error.value.vector, error.value.place) == (vector, place)
        np.testing.assert_equal(error.value.value, float(np.float32(value)))
        assert table.codes.tolist() == table.codes[: max(n_known, vector > 0)].tolist()


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
