"""Layout vectors as numbers: what one config says of one configurable node, 18 values -1..5."""

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = -1, 5  # of a layout value: a dimension number, or none
N_VALUES = 18
N_WORDS = 9  # of 64 bits: 18 values as the file has them, in float32
N_SYMBOLS = 7
N_TENSORS = 3  # output, input, kernel: 6 values each
DECODED_AT_ONCE = 1 << 14  # codes, whose digits take 18 times 8 bytes each on the way
POWERS = N_SYMBOLS ** np.arange(N_VALUES, dtype=np.int64)


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


def checked_codes(vectors: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the codes of vectors (v, 18) as a file has them.

    Raises:
        UnknownValueError: a value is not a whole number -1..5; names the first one.
    """
    with np.errstate(invalid="ignore"):  # of bad values, refused at once
        whole = vectors.astype(np.int8)
    if (whole != vectors).any() or whole.min(initial=0) < LOWEST or whole.max(initial=0) > HIGHEST:
        good = (whole == vectors) & (whole >= LOWEST) & (whole <= HIGHEST)
        row, place = (int(i) for i in np.argwhere(~good)[0])
        raise UnknownValueError(row, place, float(vectors[row, place]))
    # Exact, and many times as fast as with whole numbers: no sum reaches 2^53.
    codes = vectors.astype(np.float64) @ POWERS.astype(np.float64) - LOWEST * POWERS.sum()
    return codes.astype(np.int64)


def n_usual(vectors: NDArray[np.int8]) -> NDArray[np.int64]:
    """Count the layouts that vectors (u, 18) name, (u,); -1 where one of them is unusual.

    A usual layout has the last dimension as the most minor and the others in order behind it, as a
    compiler's own mostly has.
    """
    tensors = vectors.reshape(len(vectors), N_TENSORS, -1)
    n_dimensions = (tensors >= 0).sum(axis=2, keepdims=True)
    usual = n_dimensions - 1 - np.arange(tensors.shape[2])
    is_usual = ((tensors == usual) | (tensors < 0)).all(axis=(1, 2))
    return np.where(is_usual, (n_dimensions > 0).sum(axis=(1, 2)), -1)
