"""The cost models of layouts and tiles against slow references, node by node, step by step."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.synthetic import cost_models
from data.synthetic.cost_models import TileProblem, layout_cost, layout_space, tile_runtime_ns
from data.synthetic.programs import FAMILIES, Family, LayoutProgram, sized_program


def slow_tile_ns(problem: TileProblem, config: NDArray[np.float32]) -> float:
    """Walk every step of the grid of one config (24,)."""

    def tiled(shape: tuple[int, ...], start: int) -> list[tuple[int, int]]:
        units = [1] * (len(shape) - 2) + [8, 128][-len(shape) :]
        sizes = [int(config[start + i]) * unit for i, unit in enumerate(units)]
        return [(size, math.ceil(n / size)) for n, size in zip(shape, sizes, strict=True)]

    output = tiled(problem.shape, 8)
    elements = math.prod(size for size, _ in output) * problem.n_streams
    held = elements * problem.element_bytes
    excess = max(0.0, held / cost_models.SCRATCH_BYTES - 1)
    memory_ns = held * (1 + min(2.0 * excess, 6.0)) / cost_models.TILE_BYTES_PER_NS
    total_ns = cost_models.LAUNCH_NS
    for _ in itertools.product(*[range(count) for _, count in output]):
        total_ns += cost_models.STEP_OVERHEAD_NS + max(
            elements / cost_models.ELEMENTS_PER_NS, memory_ns
        )
    return total_ns


@pytest.mark.parametrize(
    "problem",
    [
        TileProblem((20, 300), 4, 3),
        TileProblem((64, 1000), 2, 1),
        TileProblem((4, 7, 7, 200), 4, 2),
        TileProblem((2048, 4096), 4, 2),
    ],
)
def test_tile_cost_equals_the_slow_reference(problem: TileProblem) -> None:
    rng = np.random.default_rng(0)
    configs = np.zeros((12, 24), np.float32)
    low, high = (8, 13) if problem.shape[0] > 1000 else (1, 3)
    rank = len(problem.shape)
    configs[:, 8 : 8 + rank] = rng.integers(low, high, (12, rank))
    slow = [slow_tile_ns(problem, config) for config in configs]
    assert len(set(slow)) > 1
    np.testing.assert_allclose(tile_runtime_ns(problem, configs), slow, rtol=1e-9)


def slow_layout_ns(graph: LayoutProgram | LayoutGraph, config: NDArray[np.float32]) -> float:
    """Walk the program once for one config (k, 18); a layout is a minor dimension."""
    shapes = [tuple(int(x) for x in row[21:27] if x > 0) for row in graph.node_feat]
    width = [2 if row[15] else 0 if row[18] else 4 for row in graph.node_feat]
    given = dict(
        zip(graph.node_config_ids.tolist(), config[:, [0, 6, 12]].astype(int).tolist(), strict=True)
    )
    operands = defaultdict(list)
    for consumer, producer in graph.edge_index.tolist():
        operands[consumer].append(producer)
    minor: list[int] = []
    total_ns = 0.0

    def moved_ns(v: int, dimension: int) -> float:
        shape = shapes[v]
        elements = math.prod(shape)
        if shape:
            elements = elements // shape[dimension] * math.ceil(shape[dimension] / 128) * 128
        return elements * width[v] / cost_models.BYTES_PER_NS

    for v, shape in enumerate(shapes):
        total_ns += cost_models.NODE_OVERHEAD_NS
        alike = [u for u in operands[v] if shape and shapes[u] == shape]
        own = minor[alike[0]] if alike else len(shape) - 1
        if v not in given:
            minor.append(own)
            total_ns += math.prod(shape) * width[v] / cost_models.BYTES_PER_NS
            continue
        minor.append(given[v][0] if given[v][0] >= 0 else len(shape) - 1)
        total_ns += moved_ns(v, minor[v])
        for slot, u in enumerate([u for u in operands[v] if shapes[u]][:2], start=1):
            wanted = given[v][slot] if given[v][slot] >= 0 else minor[u]
            total_ns += moved_ns(u, wanted)
            if wanted != minor[u]:
                size = math.prod(shapes[u]) * width[u]
                total_ns += cost_models.COPY_OVERHEAD_NS + 2 * size / cost_models.COPY_BYTES_PER_NS
    return total_ns


@pytest.mark.parametrize("family", sum(FAMILIES.values(), ()), ids=lambda family: family.name)
def test_layout_cost_equals_the_slow_reference(family: Family) -> None:
    program = sized_program(400, 16, family, batch=12)
    rng = np.random.default_rng(0)
    space = layout_space(program, rng)
    choices = space.draw(10, rng, near_default=True)
    configs = space.configs(choices)
    assert (configs == -1).all(axis=(1, 2)).any()
    slow = [slow_layout_ns(program, config) for config in configs]
    assert len(set(slow)) > 3
    np.testing.assert_allclose(layout_cost(program, space).runtime_ns(choices), slow, rtol=1e-9)
