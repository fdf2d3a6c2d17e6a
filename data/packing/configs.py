"""Packed configs by row: the indices in memory or mapped from a file; c configs of k nodes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.graphs.configs import ConfigColumns
from data.packing.config_encoder import Alphabets, ConfigEncoder
from data.packing.vectors import decoded


@dataclass(frozen=True)
class PackedConfigs:
    """All configs of one layout graph: a table of distinct layout vectors, and indices into it.

    Attributes:
        alphabets: what an index means, by column.
        indices: (c, m) unsigned; columns that are tied to each other are stored once.
        hashes: (c,) uint64 content hashes.
    """

    alphabets: Alphabets
    indices: NDArray[Any]
    hashes: NDArray[np.uint64]

    @property
    def n_configs(self) -> int:
        """Return c."""
        return self.indices.shape[0]

    @property
    def n_configurable(self) -> int:
        """Return k."""
        return len(self.alphabets.column_of)

    @property
    def vectors(self) -> NDArray[np.int8]:
        """Return (u, 18) int8, the distinct layout vectors of the graph."""
        return decoded(self.alphabets.codes)

    def vector_ids(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of `vectors` each node has in the configs at `index` (r,); (r, k) int64."""
        vectors = self.alphabets.vectors
        places = self.places(index) + np.arange(len(vectors)) * vectors.shape[1]
        return vectors.reshape(-1).take(places).take(self.alphabets.column_of, axis=1)

    @property
    def columns(self) -> ConfigColumns:
        """Return the columns that hold all configs."""
        alphabets = self.alphabets
        return ConfigColumns(alphabets.column_of, alphabets.vectors, alphabets.sizes)

    def places(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which of its column's vectors each column has; (r, m) int64 below a."""
        return self.indices[index].astype(np.int64)

    def rows(self, index: NDArray[np.int64]) -> NDArray[np.int8]:
        """Return the configs at `index` (r,) as (r, k, 18) int8, in that order."""
        return self.vectors.take(self.vector_ids(index), axis=0)

    def content_hashes(self) -> NDArray[np.uint64]:
        """Return (c,) uint64; equal configs have equal hashes, on every machine."""
        return self.hashes


def packed(spool: ConfigEncoder) -> PackedConfigs:
    """Return what a spool holds, in memory."""
    alphabets = spool.alphabets()
    indices = np.concatenate(list(spool.indices(alphabets)))
    return PackedConfigs(alphabets, indices, spool.hashes(alphabets))


def pack_values(values: NDArray[np.int8]) -> PackedConfigs:
    """Pack configs (c, k, 18) that are in memory already."""
    with ConfigEncoder(values.shape[1]) as spool:
        content = np.ascontiguousarray(values, np.float32).tobytes()
        spool.add(content)
        return packed(spool)
