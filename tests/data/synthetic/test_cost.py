"""The cost models of synthetic data against slow references: edge by edge, step by step."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from numpy.typing import NDArray

from data.synthetic import layout_cost as model
from data.synthetic import layout_runtime_ns, tile_cost, tile_runtime_ns
from data.synthetic.hlo import ELEMENTWISE, OPCODES
from data.synthetic.layout_files import search_configs
from data.synthetic.networks import Family, LayoutProgram, build_program
from data.synthetic.plan import FAMILIES

CONSTANT, BROADCAST, TUPLE = (OPCODES[name] for name in ("constant", "broadcast", "tuple"))
Pair = tuple[int, int]


class SlowLayoutCost:
    """Cost of one config (k, 18), node by node; a layout is a pair of dimensions or None."""

    def __init__(self, graph: LayoutProgram, config: NDArray[np.int8]) -> None:
        self.opcodes = graph.node_opcode.tolist()
        self.shapes = [tuple(int(x) for x in row[21:27] if x > 0) for row in graph.node_feat]
        self.width = [2 if row[15] else 0 if row[18] else 4 for row in graph.node_feat]
        self.choice = dict(zip(graph.node_config_ids.tolist(), config.tolist(), strict=True))
        self.operands = defaultdict(list)
        for consumer, producer in graph.edge_index.tolist():
            self.operands[consumer].append(producer)
        self.layout: list[Pair | None] = []
        self.total_ns = 0.0
        for v in range(len(self.opcodes)):
            self.layout.append(self.own_layout(v))
            self.total_ns += model.NODE_OVERHEAD_NS + self.reads_ns(v)
            if self.opcodes[v] not in ELEMENTWISE and self.opcodes[v] != OPCODES["parameter"]:
                self.total_ns += self.traffic_ns(v, self.layout[v])

    def default(self, v: int) -> Pair | None:
        rank = len(self.shapes[v])
        return (rank - 1, rank - 2) if rank >= 2 else None

    def given(self, v: int, tensor: int) -> Pair | None:
        first, second = self.choice[v][6 * tensor : 6 * tensor + 2]
        return (first, second) if second >= 0 else None

    def same_shape(self, v: int) -> list[int]:
        return [u for u in self.operands[v] if self.shapes[u] == self.shapes[v]]

    def own_layout(self, v: int) -> Pair | None:
        if len(self.shapes[v]) < 2 or self.opcodes[v] in (CONSTANT, BROADCAST):
            return None
        if v in self.choice:
            return self.given(v, 0) or self.default(v)
        if self.opcodes[v] in ELEMENTWISE:
            for u in self.same_shape(v):
                if self.layout[u] is not None:
                    return self.layout[u]
        return self.default(v)

    def copy_ns(self, v: int) -> float:
        size = math.prod(self.shapes[v]) * self.width[v]
        return model.COPY_OVERHEAD_NS + 2 * size / model.COPY_BYTES_PER_NS

    def copy_unless_ns(self, v: int, wanted: Pair | None) -> float:
        fits = self.layout[v] is None or wanted is None or self.layout[v] == wanted
        return 0.0 if fits else self.copy_ns(v)

    def traffic_ns(self, v: int, pair: Pair | None) -> float:
        if pair is None:
            return 0.0
        size = 1
        for axis, extent in enumerate(self.shapes[v]):
            tile = 128 if axis == pair[0] else 8 if axis == pair[1] else 1
            size *= math.ceil(extent / tile) * tile
        return size * self.width[v] / model.BYTES_PER_NS

    def reads_ns(self, v: int) -> float:
        if self.opcodes[v] == TUPLE:
            return sum(self.copy_unless_ns(u, self.default(u)) for u in self.operands[v])
        if self.opcodes[v] in ELEMENTWISE:
            return sum(self.copy_unless_ns(u, self.layout[v]) for u in self.same_shape(v))
        if v not in self.choice:
            return 0.0
        tensors = [u for u in self.operands[v] if self.shapes[u]][:2]
        taken = [
            self.given(v, t) or self.layout[u] or self.default(u)
            for t, u in enumerate(tensors, start=1)
        ]
        moved_ns = sum(
            self.copy_unless_ns(u, pair) + self.traffic_ns(u, pair)
            for u, pair in zip(tensors, taken, strict=True)
        )
        pairs = [self.layout[v], *taken]
        if self.opcodes[v] == OPCODES["reshape"]:
            sides = zip((v, *tensors), pairs, strict=True)
            return moved_ns + sum(self.copy_ns(u) for u, pair in sides if pair != self.default(u))
        return moved_ns + self.product_ns(v, tensors, pairs)

    def product_ns(self, v: int, tensors: list[int], pairs: list[Pair]) -> float:
        """Arithmetic of one convolution or dot, and its penalties."""
        shapes = [self.shapes[u] for u in (v, *tensors)]
        busy_ns = model.compute_ns(self.opcodes[v], *shapes)
        total_ns = busy_ns
        wanted = model.preferred_codes(self.opcodes[v], shapes[0], shapes[2])
        for pair, code in zip(pairs, wanted, strict=True):
            best = divmod(code, 6)
            total_ns += busy_ns * model.MINOR_PENALTY * (pair[0] != best[0])
            total_ns += busy_ns * model.SECOND_PENALTY * (pair[1] != best[1])
        return total_ns


@pytest.mark.parametrize("family", sum(FAMILIES.values(), ()), ids=lambda family: family.name)
def test_layout_cost_equals_the_slow_reference(family: Family) -> None:
    program = build_program(family, depth=3, batch=12)
    searched = search_configs(program, search="random", n_configs=10, seed=0, name=family.name)
    configs = searched.space.configs(searched.genomes)
    configs[0] = -1
    slow = [SlowLayoutCost(program, config).total_ns for config in configs]
    assert len(set(slow)) > 3
    assert np.allclose(layout_runtime_ns(program, configs, chunk=3), slow, rtol=1e-9)


def test_preferred_layouts_fill_the_tile() -> None:
    convolution, dot = OPCODES["convolution"], OPCODES["dot"]
    full_batch = model.preferred_codes(convolution, (16, 7, 7, 256), (3, 3, 64, 256))
    odd_batch = model.preferred_codes(convolution, (12, 7, 7, 64), (3, 3, 256, 64))
    assert [divmod(code, 6) for code in full_batch] == [(3, 0), (3, 0), (3, 2)]
    assert [divmod(code, 6) for code in odd_batch] == [(3, 2), (3, 2), (2, 3)]
    thin = model.preferred_codes(dot, (128, 16), (128, 16))
    assert [divmod(code, 6) for code in thin] == [(0, 1), (1, 0), (0, 1)]


def test_arithmetic_counts_multiply_adds() -> None:
    dot = model.compute_ns(OPCODES["dot"], (5, 3, 4, 6), (5, 3, 4, 7), (5, 3, 7, 6))
    assert dot == pytest.approx(2 * 5 * 3 * 4 * 6 * 7 / model.FLOPS_PER_NS)
    convolution = model.compute_ns(
        OPCODES["convolution"], (2, 8, 8, 16), (2, 8, 8, 4), (3, 3, 4, 16)
    )
    assert convolution == pytest.approx(2 * 2 * 8 * 8 * 16 * 3 * 3 * 4 / model.FLOPS_PER_NS)


def slow_tile_runtime_ns(problem: tile_cost.TileProblem, config: NDArray[np.float32]) -> float:
    """Walk every step of the grid of one config (24,)."""

    def tiles(shape: tuple[int, ...], start: int) -> list[tuple[int, int]]:
        units = [1] * (len(shape) - 2) + [8, 128][-len(shape) :]
        sizes = [int(config[start + i]) * unit for i, unit in enumerate(units)]
        return [(size, math.ceil(n / size)) for n, size in zip(shape, sizes, strict=True)]

    output = tiles(problem.shape, 8)
    out_elements = math.prod(size for size, _ in output)
    weight = tiles(problem.kernel, 0) if problem.kernel else []
    inner = [count for _, count in weight[:-1]]
    steps = moved = work = 0
    for place in itertools.product(*[range(count) for _, count in output]):
        moved += out_elements * problem.n_streams
        if not weight:
            steps += 1
            work += out_elements * problem.n_streams * 64
            continue
        for _ in itertools.product(*[range(count) for count in inner]):
            steps += 1
            rows = out_elements // output[-1][0]
            stays = math.prod(inner) == 1 and place[-1] > 0
            moved += 0 if stays else rows * weight[-2][0]
            moved += math.prod(size for size, _ in weight)
            work += 2 * out_elements * math.prod(size for size, _ in weight[:-1])
    operand_elements = (
        out_elements // output[-1][0] * weight[-2][0] + math.prod(size for size, _ in weight)
        if weight
        else 0
    )
    held = (out_elements * problem.n_streams + 2 * operand_elements) * problem.element_bytes
    excess = max(0.0, held / tile_cost.SCRATCH_BYTES - 1)
    spill = 1 + min(tile_cost.SPILL * excess, tile_cost.MAX_SPILL)
    memory_ns = moved * problem.element_bytes * spill / tile_cost.BYTES_PER_NS
    busy_ns = max(work / tile_cost.FLOPS_PER_NS, memory_ns)
    return tile_cost.LAUNCH_NS + steps * tile_cost.STEP_OVERHEAD_NS + busy_ns


@pytest.mark.parametrize(
    "problem",
    [
        tile_cost.TileProblem((20, 300), (), 4, 3),
        tile_cost.TileProblem((64, 300), (100, 300), 2, 1),
        tile_cost.TileProblem((64, 1000), (16, 1000), 4, 1),
        tile_cost.TileProblem((4, 7, 7, 200), (3, 3, 40, 200), 4, 2),
        tile_cost.TileProblem((2048, 4096), (2048, 4096), 4, 2),
    ],
)
def test_tile_cost_equals_the_slow_reference(problem: tile_cost.TileProblem) -> None:
    rng = np.random.default_rng(0)
    configs = np.zeros((12, 24), np.float32)
    low, high = (8, 13) if problem.shape[0] > 1000 else (1, 3)
    for start, shape in ((8, problem.shape), (0, problem.kernel)):
        configs[:, start : start + len(shape)] = rng.integers(low, high, (12, len(shape)))
    slow = [slow_tile_runtime_ns(problem, config) for config in configs]
    assert np.allclose(tile_runtime_ns(problem, configs), slow, rtol=1e-9)
