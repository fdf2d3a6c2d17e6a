"""The cost model of synthetic layouts against a slow reference, node by node."""

import math
from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from data.graphs.graph import LayoutGraph
from data.synthetic import layouts
from data.synthetic.layouts import layout_cost, layout_space
from data.synthetic.programs import FAMILIES, Family, LayoutProgram, sized_program


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
        return elements * width[v] / layouts.BYTES_PER_NS

    for v, shape in enumerate(shapes):
        total_ns += layouts.NODE_OVERHEAD_NS
        alike = [u for u in operands[v] if shape and shapes[u] == shape]
        own = minor[alike[0]] if alike else len(shape) - 1
        if v not in given:
            minor.append(own)
            total_ns += math.prod(shape) * width[v] / layouts.BYTES_PER_NS
            continue
        minor.append(given[v][0] if given[v][0] >= 0 else len(shape) - 1)
        total_ns += moved_ns(v, minor[v])
        for slot, u in enumerate([u for u in operands[v] if shapes[u]][:2], start=1):
            wanted = given[v][slot] if given[v][slot] >= 0 else minor[u]
            total_ns += moved_ns(u, wanted)
            if wanted != minor[u]:
                size = math.prod(shapes[u]) * width[u]
                total_ns += layouts.COPY_OVERHEAD_NS + 2 * size / layouts.COPY_BYTES_PER_NS
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
