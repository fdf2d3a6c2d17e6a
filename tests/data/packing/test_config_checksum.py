"""The checksum that packed configs are known to have is that of their bytes."""

import zlib

import numpy as np
import pytest
from numpy.typing import NDArray

from data.packing.columns import TiedColumns
from data.packing.config_checksum import ConfigChecksum
from data.packing.vectors import VectorTable


def some_vectors(n_vectors: int, rng: np.random.Generator) -> NDArray[np.float32]:
    return rng.integers(-1, 6, (n_vectors, 18)).astype(np.float32)


@pytest.mark.parametrize(("n_configs", "k"), [(1, 1), (5, 3), (64, 8), (43, 500), (300, 2)])
def test_it_is_the_checksum_of_what_the_ids_stand_for(n_configs: int, k: int) -> None:
    rng = np.random.default_rng(k)
    vectors = some_vectors(12, rng)
    table = VectorTable()
    vector_ids = np.zeros(12, np.int64)
    table.mend(vectors, vector_ids)
    group_of = np.unique(rng.integers(0, max(1, k // 2), k), return_inverse=True)[1]
    _, first = np.unique(group_of, return_index=True)
    columns = TiedColumns(first, group_of)
    ids = vector_ids[rng.integers(0, 12, (n_configs, len(first)))]
    spelt = table.meant_by(ids[:, group_of].reshape(-1)).tobytes()
    assert ConfigChecksum(columns, table)(ids) == zlib.crc32(spelt)
