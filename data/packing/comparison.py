"""Compare a chunk of configs, as read, with what its packed form says: bit by bit, in one pass."""

import numpy as np
from numpy.typing import NDArray

from data.packing.columns import TiedColumns
from data.packing.vectors import N_VALUES, VectorTable


class Comparison:
    """Spells packed configs out as bytes. Its memory is used again for each chunk.

    Fresh memory for each chunk would cost as much again as spelling it out.
    """

    def __init__(self) -> None:
        self._columns: TiedColumns | None = None
        self._bytes = bytearray()
        self._places = np.empty(0, np.int64)

    def agrees(
        self, content: bytes, ids: NDArray[np.int64], columns: TiedColumns, table: VectorTable
    ) -> bool:
        """Tell whether `content`, r configs of k vectors, is what ids (r, m) and the ties say."""
        if columns is not self._columns or len(content) != len(self._bytes):
            self._columns = columns
            self._bytes = bytearray(len(content))
            rows = np.arange(len(ids))[:, None] * ids.shape[1]
            self._places = (rows + columns.group_of).reshape(-1)  # (r · k,) positions in ids
        meant = np.frombuffer(self._bytes, np.float32).reshape(-1, N_VALUES)
        # "clip" spares a pass of checks: all places are positions.
        table.meant_by(ids.reshape(-1)).take(self._places, axis=0, out=meant, mode="clip")
        return self._bytes == content  # at memory speed
