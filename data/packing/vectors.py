"""The distinct layout vectors of one graph, found while its configs stream by.

A layout vector is what one config says of one configurable node: 18 values -1..5. A graph has
millions of them and few distinct ones, so a chunk is looked up as a whole: one matrix-vector
product gives each vector a number, and a table gives the number an id. What the ids stand for is
compared with the chunk bit by bit; what differs, next to nothing, is looked up one by one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.graphs.checks import HIGHEST, LOWEST

N_VALUES = 18
VECTOR_BYTES = 4 * N_VALUES  # in the file
N_SYMBOLS = 7
SLOT_BITS = 20
SLOT_MASK = np.int32((1 << SLOT_BITS) - 1)
# Sums of 18 products below 2^22 are exact in float32 in any order: 18 · 5 · 46,000 < 2^22.
MAX_WEIGHT = 46_000
# Added to a whole number of at most 22 bits, it leaves that number in the lowest bits (Knuth).
WHOLE = np.float32(1.5 * 2**23)
TRIES = 64  # of weights, when too many vectors share a slot
TRIES_PAY = 3.0  # vectors that share a slot by chance; with fewer, 64 draws hold one without any
DECODED_AT_ONCE = 1 << 14  # codes, whose digits take 18 times 8 bytes each on the way
POWERS = N_SYMBOLS ** np.arange(N_VALUES, dtype=np.int64)

Vectors = NDArray[np.float32]


class UnknownValueError(Exception):
    """A vector of a chunk holds a value that is no layout value.

    Attributes:
        vector: its position in the chunk.
        place: which of its 18 values.
        value: the value.
    """

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
    """Gives each distinct layout vector an id, in the order of first sight."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.id_dtype: np.dtype[Any] = np.dtype(np.uint8)  # the narrowest that holds every id
        self._codes = np.empty(0, np.int64)
        self._order = np.empty(0, np.int64)  # of the codes, ascending
        # By id, with room for more; never empty, so that it can be read.
        self._vectors = np.zeros((1, N_VALUES), np.float32)
        self._weights = self._draw_weights()
        self._ids_by_slot = np.zeros(1 << SLOT_BITS, np.int64)  # a wrong id fails the comparison
        self._is_taken = np.zeros(1 << SLOT_BITS, np.bool_)

    @property
    def codes(self) -> NDArray[np.int64]:
        """Return (u,) int64, the code of each id."""
        return self._codes

    @property
    def order(self) -> NDArray[np.int64]:
        """Return (u,) int64, the ids in the order of their codes."""
        return self._order

    def guess(self, vectors: Vectors) -> NDArray[np.int64]:
        """Return ids (v,) int64 that are right for nearly all vectors (v, 18) seen before.

        Raises:
            UnknownValueError: the very first vector holds a value that is none.
        """
        if not len(self._codes):  # id 0 must stand for a vector before anything is compared with it
            self._look_up(vectors[:1], np.zeros(1, np.int64))
        # "clip" spares a pass of checks: any slot is one.
        return self._ids_by_slot.take(self._slots(vectors), mode="clip")

    def meant_by(self, ids: NDArray[np.int64]) -> Vectors:
        """Return the (v, 18) vectors that ids (v,) stand for."""
        return self._vectors.take(ids, axis=0, mode="clip")

    def mend(self, vectors: Vectors, ids: NDArray[np.int64]) -> None:
        """Put right, in place, the ids (v,) that do not stand for their vectors (v, 18).

        Vectors that have not been seen are given new ids.

        Raises:
            UnknownValueError: a value is not a whole number -1..5; names the first one.
        """
        differs = self.meant_by(ids).view(np.uint64) != vectors.view(np.uint64)
        wrong = np.flatnonzero(differs) // differs.shape[1]
        if len(wrong):
            wrong = wrong[np.flatnonzero(np.diff(wrong, prepend=-1))]
            ids[wrong] = self._look_up(vectors[wrong], wrong)

    def _look_up(self, vectors: Vectors, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of vectors (w, 18), given new ones where there are none."""
        good = (vectors >= LOWEST) & (vectors <= HIGHEST) & (vectors == np.rint(vectors))
        if not good.all():
            row, place = (int(i) for i in np.argwhere(~good)[0])
            raise UnknownValueError(int(positions[row]), place, float(vectors[row, place]))
        codes = vector_codes(vectors)
        found, inverse = np.unique(codes, return_inverse=True)
        places = np.searchsorted(self._codes, found, sorter=self._order)
        is_new = np.ones(len(found), np.bool_)
        inside = places < len(self._codes)
        is_new[inside] = self._codes[self._order[places[inside]]] != found[inside]
        self._add(found[is_new])
        places = np.searchsorted(self._codes, found, sorter=self._order)
        ids: NDArray[np.int64] = self._order[places]
        return ids[inverse]

    def _add(self, codes: NDArray[np.int64]) -> None:
        """Give new codes ids, and slots where these are free."""
        if not len(codes):
            return
        n_before, n_now = len(self._codes), len(self._codes) + len(codes)
        self._codes = np.concatenate([self._codes, codes])
        self.id_dtype = np.min_scalar_type(n_now - 1)
        # Two ascending runs: a stable sort merges them.
        places = np.concatenate([self._order, np.arange(n_before, n_now)])
        self._order = places[np.argsort(self._codes[places], kind="stable")]
        if n_now > len(self._vectors):
            grown = np.zeros((max(n_now, 2 * len(self._vectors)), N_VALUES), np.float32)
            grown[:n_before] = self._vectors[:n_before]
            self._vectors = grown
        self._vectors[n_before:n_now] = decoded(codes)
        self._give_slots(n_before)
        if n_now - np.count_nonzero(self._is_taken) > self._most_shared():
            self._weights = self._better_weights()
            self._is_taken[:] = False
            self._give_slots(0)

    def _give_slots(self, first: int) -> None:
        """Give the ids from `first` on their slots; where one is taken, it stays whose it is."""
        slots = self._slots(self._vectors[first : len(self._codes)])
        slots, places = np.unique(slots, return_index=True)
        is_free = ~self._is_taken[slots]
        self._ids_by_slot[slots[is_free]] = first + places[is_free]
        self._is_taken[slots] = True

    def _most_shared(self) -> float:
        """Return how many vectors may find their slot taken.

        A few thousand can each have one of their own, with luck; among more some always share.
        """
        by_chance = len(self._codes) ** 2 / 2 ** (SLOT_BITS + 1)
        return 0 if by_chance < TRIES_PAY else 1.5 * by_chance

    def _better_weights(self) -> NDArray[np.float32]:
        """Draw weights until few vectors share a slot; return the best that were drawn."""
        best, most = self._weights, 0
        for _ in range(TRIES):
            weights = self._draw_weights()
            slots = _slots_by(weights, self._vectors[: len(self._codes)])
            n_slots = int(np.count_nonzero(np.bincount(slots)))
            if n_slots > most:
                best, most = weights, n_slots
            if len(self._codes) - most <= self._most_shared():
                break
        return best

    def _slots(self, vectors: Vectors) -> NDArray[np.int64]:
        return _slots_by(self._weights, vectors)

    def _draw_weights(self) -> NDArray[np.float32]:
        drawn = self._rng.integers(-MAX_WEIGHT, MAX_WEIGHT, N_VALUES, endpoint=True)
        return drawn.astype(np.float32)


def _slots_by(weights: NDArray[np.float32], vectors: Vectors) -> NDArray[np.int64]:
    """Return the (v,) slot of each vector (v, 18); the same vector has the same one."""
    with np.errstate(over="ignore", invalid="ignore"):  # of bad values, refused when compared
        numbers = vectors @ weights
    numbers += WHOLE
    return np.bitwise_and(numbers.view(np.int32), SLOT_MASK, dtype=np.int64)
