"""The distinct layout vectors of one graph, found while its configs stream by.

A layout vector is what one config says of one configurable node: 18 values -1..5. A graph has
millions of them and few distinct ones, so a hash of its bytes gives each vector an id at once. What
the ids stand for is compared with the file bit by bit; what differs, next to nothing, is looked up.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = -1, 5  # of a layout value: a dimension number, or none
N_VALUES = 18
N_WORDS = 9  # of 64 bits: 18 values as the file has them, in float32
N_SYMBOLS = 7
SLOT_BITS = 20
TRIES = 64  # of other weights, where two vectors share a slot
DECODED_AT_ONCE = 1 << 14  # codes, whose digits take 18 times 8 bytes each on the way
POWERS = N_SYMBOLS ** np.arange(N_VALUES, dtype=np.int64)

Words = NDArray[np.uint64]


class UnknownValueError(Exception):
    """A vector of those given holds, in one of its 18 places, a value that is no layout value."""

    def __init__(self, vector: int, place: int, value: float) -> None:
        super().__init__(f"vector {vector}, value {place} is {value}")
        self.vector, self.place, self.value = vector, place, value


def vector_codes(vectors: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return vectors (u, 18) of values -1..5 as (u,) int64 numbers in base 7."""
    return (vectors.astype(np.int64) - LOWEST) @ POWERS


def decoded(codes: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the (u, 18) int8 vectors of codes (u,)."""
    vectors = np.empty((len(codes), N_VALUES), np.int8)
    for start in range(0, len(codes), DECODED_AT_ONCE):
        part = slice(start, start + DECODED_AT_ONCE)
        vectors[part] = codes[part, None] // POWERS % N_SYMBOLS + LOWEST
    return vectors


class VectorTable:
    """Gives each distinct layout vector an id, in the order of first sight.

    Attributes:
        codes: (u,) int64 the code of each id.
        order: (u,) int64 the ids in the order of their codes.
        id_dtype: the narrowest that holds every id.
    """

    def __init__(self) -> None:
        self._rng, self._tries = np.random.default_rng(0), TRIES
        self.id_dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.codes = np.empty(0, np.int64)
        self.order = np.empty(0, np.int64)
        # By id, with room for more; never empty, so that it can be read.
        self._words = np.zeros((1, N_WORDS), np.uint64)
        self._weights = self._draw_weights()
        self._ids_by_slot = np.zeros(1 << SLOT_BITS, np.int64)  # a wrong id fails the comparison

    def guess(self, words: Words) -> NDArray[np.int64]:
        """Return ids (…) that are right for nearly all vectors (…, 9) seen before.

        Raises:
            UnknownValueError: the very first vector holds a value that is none.
        """
        if not len(self.codes):  # id 0 must stand for a vector before anything is compared with it
            self._look_up(words.reshape(-1, N_WORDS)[:1], np.zeros(1, np.int64))
        # "clip" spares a pass of checks: any slot is one.
        return self._ids_by_slot.take(self._slots(words), mode="clip")

    def meant_by(self, ids: NDArray[np.int64]) -> Words:
        """Return the (…, 9) words of the vectors that ids (…) stand for."""
        return self._words.take(ids, axis=0, mode="clip")

    def mend(self, words: Words, ids: NDArray[np.int64]) -> None:
        """Put right, in place, the ids (v,) that do not stand for their vectors (v, 9).

        Vectors that have not been seen are given new ids.

        Raises:
            UnknownValueError: a value is not a whole number -1..5; names the first one.
        """
        differs = self.meant_by(ids) != words
        if differs.any():
            wrong = np.flatnonzero(differs.any(axis=1))
            ids[wrong] = self._look_up(words[wrong], wrong)

    def _look_up(self, words: Words, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of vectors (w, 9), given new ones where there are none."""
        vectors = words.view(np.float32)
        good = (vectors >= LOWEST) & (vectors <= HIGHEST) & (vectors == np.rint(vectors))
        if not good.all():
            row, place = (int(i) for i in np.argwhere(~good)[0])
            raise UnknownValueError(int(positions[row]), place, float(vectors[row, place]))
        found, inverse = np.unique(vector_codes(vectors), return_inverse=True)
        self._add(np.setdiff1d(found, self.codes, assume_unique=True))
        places = np.searchsorted(self.codes, found, sorter=self.order)
        ids: NDArray[np.int64] = self.order[places]
        return ids[inverse]

    def _add(self, codes: NDArray[np.int64]) -> None:
        """Give new codes (a,), ascending, ids and slots."""
        n_before, n_now = len(self.codes), len(self.codes) + len(codes)
        self.codes = np.concatenate([self.codes, codes])
        self.id_dtype = np.min_scalar_type(n_now - 1)
        # Two ascending runs: a stable sort merges them.
        places = np.concatenate([self.order, np.arange(n_before, n_now)])
        self.order = places[np.argsort(self.codes[places], kind="stable")]
        if n_now > len(self._words):
            grown = np.zeros((max(n_now, 2 * len(self._words)), N_WORDS), np.uint64)
            grown[:n_before] = self._words[:n_before]
            self._words = grown
        self._words[n_before:n_now] = decoded(codes).astype(np.float32).view(np.uint64)
        self._give_slots(n_before)
        while self._tries and self._some_share():
            self._tries -= 1
            self._weights = self._draw_weights()
            self._give_slots(0)

    def _give_slots(self, first: int) -> None:
        ids = np.arange(first, len(self.codes))
        self._ids_by_slot[self._slots(self._words[first : len(self.codes)])] = ids

    def _some_share(self) -> bool:
        ids = np.arange(len(self.codes))
        return bool((self._ids_by_slot[self._slots(self._words[: len(ids)])] != ids).any())

    def _slots(self, words: Words) -> NDArray[np.int64]:
        return ((words @ self._weights) >> np.uint64(64 - SLOT_BITS)).view(np.int64)

    def _draw_weights(self) -> NDArray[np.uint64]:
        return self._rng.integers(0, 1 << 64, N_WORDS, np.uint64) | np.uint64(1)
