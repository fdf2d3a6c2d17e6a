"""Seeded randomness, the same on every machine and in any order of work."""

import hashlib

import numpy as np


def generator(seed: int, *labels: str) -> np.random.Generator:
    """Return a generator that depends on `seed` and `labels` only."""
    digest = hashlib.blake2b("/".join(labels).encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])
