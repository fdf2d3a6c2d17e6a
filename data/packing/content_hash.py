"""Name each config by what it holds, equal on every machine and however configs are stored.

The hash of a config is the sum, modulo 2^64, of one random-looking number for each node's layout
vector (multilinear hashing, Carter and Wegman 1979, with a mixing function for the random table):
it can be summed from tables of the few vectors each node takes. Two different configs agree with a
chance of about 2^-64; for 100,000 configs that is 3e-10 in all.
"""

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
MIX_TWO = np.uint64(0x94D049BB133111EB)


def vector_hashes(nodes: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return what each layout vector adds to the hash of a config; uint64.

    Args:
        nodes: positions 0..k-1 of configurable nodes, of a shape that broadcasts with `codes`.
        codes: the vectors in base 7, see `data.packing.vectors`.
    """
    with np.errstate(over="ignore"):
        salted = _mixed(nodes.astype(np.uint64) * GOLDEN + GOLDEN)
        return _mixed(salted ^ (codes.astype(np.uint64) * GOLDEN))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits so that each depends on all (the finaliser of splitmix64, Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * MIX_ONE
    values = (values ^ (values >> np.uint64(27))) * MIX_TWO
    return values ^ (values >> np.uint64(31))
