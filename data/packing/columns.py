"""Which nodes are given equal layouts in every config; their column is stored once.

The search ties nodes to each other: of the 848 configurable nodes of a real graph, 26 differ.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TiedColumns:
    """Groups of columns that have been equal in all rows so far; they only ever split.

    Attributes:
        first: (m,) int64 the first column of each group, ascending.
        group_of: (k,) int64 which group a column belongs to.
    """

    first: NDArray[np.int64]
    group_of: NDArray[np.int64]

    @classmethod
    def all_of(cls, n_columns: int) -> Self:
        """Tie all columns to each other."""
        return cls(np.zeros(1, np.int64), np.zeros(n_columns, np.int64))

    def split(self, rows: NDArray[np.int64]) -> Self:
        """Part columns that differ in `rows` (r, k); return these very groups if none does."""
        if (rows == rows[:, self.first[self.group_of]]).all():
            return self
        signatures = np.concatenate([self.group_of[None], rows])
        _, first, group_of = np.unique(signatures, axis=1, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return type(self)(first[order], rank[group_of.reshape(-1)])
