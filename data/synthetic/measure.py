"""Seeded randomness and noisy measurement, the same on every machine."""

import hashlib

import numpy as np
from numpy.typing import NDArray


def generator(seed: int, *labels: str) -> np.random.Generator:
    """Return a generator that depends on `seed` and `labels` only."""
    digest = hashlib.blake2b("/".join(labels).encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])


def log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    """Draw a number between `limits`, uniform in its logarithm."""
    return float(np.exp(rng.uniform(*np.log(limits))))


def measured_ns(
    runtime_ns: NDArray[np.float64], noise: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return whole nanoseconds (c,), each with its own relative error of about `noise`."""
    factor = np.exp(noise * rng.standard_normal(len(runtime_ns)))
    return np.maximum(1, np.rint(runtime_ns * factor)).astype(np.int64)
