"""The checksum that packed configs are known to have is that of their bytes."""

import zlib

import numpy as np
import pytest
from numpy.typing import NDArray

from data.packing.columns import TiedColumns
from data.packing.config_checksum import ConfigChecksum
from data.packing.configs import packed
from data.packing.spool import Spool
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


def test_chunks_are_packed_as_they_are_whatever_they_bring() -> None:
    rng = np.random.default_rng(0)
    vectors = some_vectors(40, rng)
    known_after, meant = [], []
    with Spool(6) as spool:
        for step in range(200):
            choice = rng.integers(0, 4 + step // 50, (7, 3))
            chunk = vectors[np.repeat(choice, 2, axis=1)]  # nodes are tied in pairs
            if step in {90, 150}:
                chunk[3, 1] = vectors[30 + step // 50]  # and then two are not
            if step in {20, 170}:
                chunk[chunk == 0] = -0.0  # is read as 0, but its bytes are others
            content = chunk.tobytes()
            spool.add(content, zlib.crc32(content))
            meant.append(chunk.astype(np.int8))
            known_after.append(spool._checksum is not None)
        configs = packed(spool)
    whole = np.concatenate(meant)
    np.testing.assert_array_equal(configs.rows(np.arange(len(whole))), whole)
    assert not known_after[0]
    assert known_after[-1]
