"""Configs to measure: layouts at random or searched from the compiler's default, and tiles."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.graphs.node_columns import OPCODE_NAMES
from data.synthetic.costs import (
    KERNEL_BOUNDS,
    OUTPUT_BOUNDS,
    SCRATCH_BYTES,
    GraphArrays,
    LayoutArrays,
    TileProblem,
    operands_of,
    tensor_shapes,
    tile_problem,
    tile_units,
    working_set_bytes,
)

# How many configurable nodes are tied to no other: in the real files few columns are distinct, 15
# of 56 configurable nodes, 26 of 848.
LOOSE_SHARE, MOST_LOOSE = 0.15, 12
CLOSED_TENSORS = 0.08  # share of tensors that no config of the graph sets
UNSET_CHOICES = 0.11  # how often a config leaves a node to the compiler
REPEATED_RANDOM = 0.06  # share of random configs that are measured again
MUTATIONS = 1.6  # groups of tied nodes that change in a child, on average
BOUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # besides a dimension's own number of units


@dataclass(frozen=True)
class LayoutSpace:
    """Which configs a program can have: k configurable nodes in g tied groups, c configs.

    A config is kept as its choices (c, g) int8: which option each group takes, 0 = unset.

    Attributes:
        group_of: (k,) int64 group of each configurable node.
        options: (g, o, 18) int8 rows of configs by group and option.
        n_options: (g,) int64 how many options each group has, 2 at least.
    """

    group_of: NDArray[np.int64]
    options: NDArray[np.int8]
    n_options: NDArray[np.int64]

    def configs(self, choices: NDArray[np.int8]) -> NDArray[np.int8]:
        """Spell choices (c, g) out as configs (c, k, 18)."""
        return self.options[np.arange(len(self.options)), choices][:, self.group_of]

    def draw(self, n_configs: int, rng: np.random.Generator) -> NDArray[np.int8]:
        """Draw choices (c, g) at random, now and then none."""
        shape = (n_configs, len(self.options))
        drawn = rng.integers(1, self.n_options, shape, dtype=np.int8)
        drawn[rng.random(shape, dtype=np.float32) < UNSET_CHOICES] = 0
        return drawn


def layout_space(graph: LayoutArrays, rng: np.random.Generator) -> LayoutSpace:
    """Tie configurable nodes of equal operation and shapes together and draw their options.

    As in the real files, a column takes at most 2 · 2 · 2 vectors and one that leaves all unset.
    """
    shapes, operands = tensor_shapes(graph.node_feat), operands_of(graph)
    groups: dict[tuple[object, ...], int] = {}
    options: list[list[list[int]]] = []
    loose_share = min(LOOSE_SHARE, MOST_LOOSE / len(graph.node_config_ids))
    group_of = []
    for node in graph.node_config_ids.tolist():
        opcode = OPCODE_NAMES[int(graph.node_opcode[node]) - 1]
        tensors = [shapes[node], *[shapes[v] for v in operands[node] if shapes[v]]][:3]
        loose = node if rng.random() < loose_share else None
        signature = (opcode, *tensors, loose)
        if signature not in groups:
            groups[signature] = len(groups)
            orders = [_draw_orders(opcode, shape, rng) for shape in tensors]
            options.append([_row(chosen) for chosen in product(*orders)])
        group_of.append(groups[signature])
    table = np.full((len(options), 9, N_LAYOUT_VALUES), -1, np.int8)
    for group, rows in enumerate(options):
        table[group, 1 : 1 + len(rows)] = rows
    n_options = np.array([1 + len(rows) for rows in options], np.int64)
    return LayoutSpace(np.array(group_of, np.int64), table, n_options)


def _draw_orders(
    opcode: str, shape: tuple[int, ...], rng: np.random.Generator
) -> list[tuple[int, ...]]:
    """Draw the layouts that a tensor may be given: one or two, or unset alone if it stays closed.

    A reshape is given whole orders, the others a pair of most minor dimensions in either order.
    """
    rank = len(shape)
    if rank < 2 or rng.random() < CLOSED_TENSORS:
        return [()]
    if opcode == "reshape":
        orders = [tuple(reversed(range(rank))), tuple(rng.permutation(rank).tolist())]
    else:
        others = (rank - 2, 0, int(rng.integers(rank - 1)))
        pair = (rank - 1, others[rng.integers(3)])
        orders = [pair, pair[::-1]]
    return list(dict.fromkeys(orders))


def _row(orders: tuple[tuple[int, ...], ...]) -> list[int]:
    tensors = (*orders, (), ())[:3]
    return [value for order in tensors for value in (*order, *[-1] * (6 - len(order)))]


def random_search(space: LayoutSpace, n_configs: int, rng: np.random.Generator) -> NDArray[np.int8]:
    """Draw choices (c, g) at random; a few appear twice."""
    choices = space.draw(n_configs, rng)
    repeated = np.flatnonzero(rng.random(n_configs) < REPEATED_RANDOM)
    choices[repeated] = choices[rng.integers(0, n_configs, len(repeated))]
    return choices


def default_search(
    space: LayoutSpace,
    n_configs: int,
    runtime_ns: Callable[[NDArray[np.int8]], NDArray[np.float64]],
    rng: np.random.Generator,
) -> NDArray[np.int8]:
    """Evolve choices from the compiler's default, row 0, and return all that were measured (c, g).

    Each generation changes some groups of the fastest so far.

    Args:
        runtime_ns: returns the (c,) runtimes of choices (c, g).
    """
    size = min(max(16, n_configs // 25), 512)
    measured = np.zeros((1, len(space.options)), np.int8)
    parents, parents_ns = measured, runtime_ns(measured)
    while len(measured) < n_configs:
        n_children = min(size, n_configs - len(measured))
        children = parents[rng.integers(0, len(parents), n_children)]
        changed = rng.random(children.shape, dtype=np.float32) < MUTATIONS / len(space.options)
        children = np.where(changed, space.draw(n_children, rng), children)
        measured = np.concatenate([measured, children])
        parents = np.concatenate([parents, children])
        parents_ns = np.concatenate([parents_ns, runtime_ns(children)])
        fastest = np.argsort(parents_ns, kind="stable")[: max(4, size // 4)]
        parents, parents_ns = parents[fastest], parents_ns[fastest]
    return measured


def tile_configs(
    kernel: GraphArrays, n_configs: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw up to `n_configs` distinct tile configs (c, 24); the compiler's default is row 0.

    The default has the largest working set that fits half of the scratch memory; nothing that
    overflows the scratch more than twice is kept. Kernels with few tilings give fewer configs.
    """
    problem = tile_problem(kernel)
    smallest = _tile_rows(problem, [np.ones(1, np.int64)] * len(problem.shape + problem.kernel))
    drawn = np.unique(np.concatenate([_draw_tiles(problem, 8 * n_configs, rng), smallest]), axis=0)
    needed = working_set_bytes(problem, drawn)
    drawn, needed = drawn[needed <= 2 * SCRATCH_BYTES], needed[needed <= 2 * SCRATCH_BYTES]
    default = int(np.argmax(np.where(needed <= SCRATCH_BYTES // 2, needed, -1)))
    others = rng.permutation(np.delete(np.arange(len(drawn)), default))[: n_configs - 1]
    return drawn[[default, *others.tolist()]]


def _draw_tiles(problem: TileProblem, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw tile configs (n, 24) with repetition: bounds at most a dimension's number of units."""
    columns = []
    for shape in (problem.shape, problem.kernel):
        for size, unit in zip(shape, tile_units(shape).tolist(), strict=True):
            most = math.ceil(size / unit)
            choices = np.array(sorted({most, *[bound for bound in BOUNDS if bound <= most]}))
            columns.append(rng.choice(choices, n))
    if problem.kernel:  # the weight's features are the output's
        columns[-1] = columns[len(problem.shape) - 1]
    return _tile_rows(problem, columns)


def _tile_rows(problem: TileProblem, columns: list[NDArray[np.int64]]) -> NDArray[np.float32]:
    """Lay columns of bounds (c,), of the output and then the kernel, out as configs (c, 24)."""
    rows = np.zeros((len(columns[0]), N_TILE_VALUES), np.float32)
    rank = len(problem.shape)
    for block, part in ((OUTPUT_BOUNDS, columns[:rank]), (KERNEL_BOUNDS, columns[rank:])):
        if part:
            bounds = np.stack(part, axis=1)
            rows[:, block.start : block.start + len(part)] = bounds
            rows[:, block.start + 6] = bounds.sum(axis=1)
            rows[:, block.start + 7] = bounds.prod(axis=1)
    return rows
