"""The cost model of synthetic tiles against a slow reference, step by step."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from data.synthetic import tiles
from data.synthetic.tiles import tile_runtime_ns


def slow_tile_ns(problem: tiles.TileProblem, config: NDArray[np.float32]) -> float:
    """Walk every step of the grid of one config (24,)."""

    def tiled(shape: tuple[int, ...], start: int) -> list[tuple[int, int]]:
        units = [1] * (len(shape) - 2) + [8, 128][-len(shape) :]
        sizes = [int(config[start + i]) * unit for i, unit in enumerate(units)]
        return [(size, math.ceil(n / size)) for n, size in zip(shape, sizes, strict=True)]

    output = tiled(problem.shape, 8)
    elements = math.prod(size for size, _ in output) * problem.n_streams
    held = elements * problem.element_bytes
    excess = max(0.0, held / tiles.SCRATCH_BYTES - 1)
    memory_ns = held * (1 + min(2.0 * excess, 6.0)) / tiles.TILE_BYTES_PER_NS
    total_ns = tiles.LAUNCH_NS
    for _ in itertools.product(*[range(count) for _, count in output]):
        total_ns += tiles.STEP_OVERHEAD_NS + max(elements / tiles.ELEMENTS_PER_NS, memory_ns)
    return total_ns


@pytest.mark.parametrize(
    "problem",
    [
        tiles.TileProblem((20, 300), 4, 3),
        tiles.TileProblem((64, 1000), 2, 1),
        tiles.TileProblem((4, 7, 7, 200), 4, 2),
        tiles.TileProblem((2048, 4096), 4, 2),
    ],
)
def test_tile_cost_equals_the_slow_reference(problem: tiles.TileProblem) -> None:
    rng = np.random.default_rng(0)
    configs = np.zeros((12, 24), np.float32)
    low, high = (8, 13) if problem.shape[0] > 1000 else (1, 3)
    rank = len(problem.shape)
    configs[:, 8 : 8 + rank] = rng.integers(low, high, (12, rank))
    slow = [slow_tile_ns(problem, config) for config in configs]
    assert len(set(slow)) > 1
    np.testing.assert_allclose(tile_runtime_ns(problem, configs), slow, rtol=1e-9)
