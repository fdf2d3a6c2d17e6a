"""Compare a chunk of configs, as read, with what its packed form says: bit by bit, in one pass."""

import numpy as np
from numpy.typing import NDArray

from data.packing.columns import TiedColumns
from data.packing.vectors import N_VALUES, VECTOR_BYTES, VectorTable

PART_BYTES = 256 << 10  # stays in the processor's nearer caches between spelling out and comparing


class Comparison:
    """Spells packed configs out as bytes, part by part. Its memory is used again for each chunk.

    Fresh memory for each chunk would cost as much again as spelling it out.
    """

    def __init__(self) -> None:
        self._columns: TiedColumns | None = None
        self._n_bytes = 0
        self._parts: list[tuple[int, bytearray, NDArray[np.float32], NDArray[np.int64]]] = []

    def agrees(
        self, content: bytes, ids: NDArray[np.int64], columns: TiedColumns, table: VectorTable
    ) -> bool:
        """Tell whether `content`, r configs of k vectors, is what ids (r, m) and the ties say."""
        if columns is not self._columns or len(content) != self._n_bytes:
            self._prepare(len(content), ids, columns)
        meant, read = table.meant_by(ids.reshape(-1)), memoryview(content)
        for start, spelt, vectors, places in self._parts:
            # "clip" spares a pass of checks: all places are positions.
            meant.take(places, axis=0, out=vectors, mode="clip")
            if spelt != read[start : start + len(spelt)]:  # at memory speed
                return False
        return True

    def _prepare(self, n_bytes: int, ids: NDArray[np.int64], columns: TiedColumns) -> None:
        """Note which of ids (r, m) each vector of a chunk has, for some vectors at a time."""
        self._columns, self._n_bytes = columns, n_bytes
        rows = np.arange(len(ids))[:, None] * ids.shape[1]
        places = (rows + columns.group_of).reshape(-1)  # (r · k,) positions in ids
        step = PART_BYTES // VECTOR_BYTES
        buffer = bytearray(min(step, len(places)) * VECTOR_BYTES)
        self._parts = []
        for start in range(0, len(places), step):
            part = places[start : start + step]
            spelt = (
                buffer
                if len(part) == len(buffer) // VECTOR_BYTES
                else bytearray(len(part) * VECTOR_BYTES)
            )
            vectors = np.frombuffer(spelt, np.float32).reshape(-1, N_VALUES)
            self._parts.append((start * VECTOR_BYTES, spelt, vectors, part))
