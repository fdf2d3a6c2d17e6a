"""The CRC-32 of packed configs, without spelling them out."""

import numpy as np
from numpy.typing import NDArray

from data.npz import crc32
from data.packing.columns import TiedColumns
from data.packing.vectors import VECTOR_BYTES, VectorTable


class ConfigChecksum:
    """Tells the CRC-32 of the bytes that ids of tied columns stand for.

    Where that is the checksum of what was read, the two are the same but for one chance in 2^32.

    A config's linear checksum is the exclusive or of what each layout vector adds at its place;
    what tied columns add is known beforehand, for each vector that they can take. So a config costs
    m look-ups instead of a pass over its 72 k bytes.

    Args:
        columns: m groups of k columns.
        table: its vectors may not change while this is used.
    """

    def __init__(self, columns: TiedColumns, table: VectorTable) -> None:
        self.columns, self.n_vectors = columns, len(table.codes)
        self._config_bytes = VECTOR_BYTES * len(columns.group_of)
        vectors = table.meant_by(np.arange(self.n_vectors))
        checksums = np.array([crc32.linear(vector.tobytes()) for vector in vectors], np.uint32)
        bits = crc32.bits_of(checksums)  # (u, 32)
        images = crc32.images_in_a_row(len(columns.group_of), VECTOR_BYTES)  # (k, 32)
        order = np.argsort(columns.group_of, kind="stable")
        starts = np.searchsorted(columns.group_of[order], np.arange(len(columns.first)))
        by_bit = np.bitwise_xor.reduceat(images[order], starts)  # (m, 32)
        self._by_column = np.concatenate(
            [np.bitwise_xor.reduce(column * bits, axis=1) for column in by_bit]
        )
        self._starts = np.arange(len(columns.first)) * self.n_vectors

    def fits(self, columns: TiedColumns, table: VectorTable) -> bool:
        """Tell whether these are the ties and vectors that this was made for."""
        return columns is self.columns and len(table.codes) == self.n_vectors

    def __call__(self, ids: NDArray[np.int64]) -> int:
        """Return the CRC-32 of the configs that ids (r, m) stand for."""
        parts = self._by_column.take(ids + self._starts, mode="clip")
        configs = np.bitwise_xor.reduce(parts, axis=1)  # (r,)
        linear = crc32.in_a_row(configs, self._config_bytes)
        return linear ^ crc32.of_zeros(self._config_bytes * len(ids))
