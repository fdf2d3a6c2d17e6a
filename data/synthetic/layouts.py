"""Layout configs of programs, and the cost model behind their runtimes.

It knows an accelerator that moves whole tiles of 128 elements along a tensor's most minor
dimension.
"""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_LAYOUT_VALUES
from data.graphs.node_columns import OPCODE_NAMES
from data.synthetic.programs import LANES, LayoutProgram

# How many configurable nodes are tied to no other: in the real files few columns are distinct, 15
# of 56 configurable nodes, 26 of 848.
LOOSE_SHARE, MOST_LOOSE = 0.15, 12
CLOSED_TENSORS = 0.08  # share of tensors that no config of the graph sets
UNSET_CHOICES = 0.11  # how often a config leaves a node to the compiler
REPEATED = 0.06  # share of configs that are measured again
NEARNESS = 0.25  # of the share of unset groups, evenly drawn, the power near the default
MOST_OPTIONS = 9  # of a group: 2 · 2 · 2 vectors, as in the real files, and one that is all unset
MINOR = [0, 6, 12]  # places in a layout vector: the most minor dimension of each tensor

BYTES_PER_NS = 400.0
COPY_BYTES_PER_NS = 150.0  # copies gather across tiles, far below the memory's bandwidth
COPY_OVERHEAD_NS = 1_000.0
NODE_OVERHEAD_NS = 300.0


@dataclass(frozen=True)
class LayoutSpace:
    """Which configs a program can have: k configurable nodes in g tied groups, c configs.

    A config is kept as its choices (c, g) int8: which option each group takes, 0 = unset.

    Attributes:
        group_of: (k,) int64 group of each configurable node.
        options: (g, o, 18) float32 rows of configs by group and option, as files hold them.
        n_options: (g,) int64 how many options each group has, 2 at least.
    """

    group_of: NDArray[np.int64]
    options: NDArray[np.float32]
    n_options: NDArray[np.int64]

    def configs(self, choices: NDArray[np.int8]) -> NDArray[np.float32]:
        """Spell choices (c, g) out as configs (c, k, 18)."""
        c, k = len(choices), len(self.group_of)
        vectors = self.options.reshape(-1, N_LAYOUT_VALUES).view(f"V{4 * N_LAYOUT_VALUES}")[:, 0]
        places = choices + np.arange(len(self.options)) * MOST_OPTIONS
        rows = vectors.take(places.take(self.group_of, axis=1), mode="clip")  # all are places
        return rows.view(np.float32).reshape(c, k, N_LAYOUT_VALUES)

    def draw(
        self, n_configs: int, rng: np.random.Generator, *, near_default: bool
    ) -> NDArray[np.int8]:
        """Draw choices (c, g) at random; a few come twice.

        Near the compiler's default most leave nearly all groups to it, and one leaves all.
        """
        shape = (n_configs, len(self.options))
        choices = rng.integers(1, self.n_options, shape, dtype=np.int8)
        unset = rng.random((n_configs, 1)) ** NEARNESS if near_default else UNSET_CHOICES
        choices[rng.random(shape, dtype=np.float32) < unset] = 0
        repeated = np.flatnonzero(rng.random(n_configs) < REPEATED)
        choices[repeated] = choices[rng.integers(0, n_configs, len(repeated))]
        if near_default:
            choices[rng.integers(n_configs)] = 0
        return choices


def layout_space(program: LayoutProgram, rng: np.random.Generator) -> LayoutSpace:
    """Tie configurable nodes of equal operation and shapes together and draw their options."""
    shapes = program.shapes
    groups: dict[tuple[object, ...], int] = {}
    options: list[list[list[int]]] = []
    loose_share = min(LOOSE_SHARE, MOST_LOOSE / len(program.node_config_ids))
    group_of = []
    for node in program.node_config_ids.tolist():
        opcode = OPCODE_NAMES[int(program.node_opcode[node]) - 1]
        tensors = _tensors(node, program)
        loose = node if rng.random() < loose_share else None
        signature = (opcode, *(shapes[v] for v in tensors), loose)
        if signature not in groups:
            groups[signature] = len(groups)
            orders = [_draw_orders(opcode, shapes[v], rng) for v in tensors]
            options.append([_row(chosen) for chosen in product(*orders)])
        group_of.append(groups[signature])
    table = np.full((len(options), MOST_OPTIONS, N_LAYOUT_VALUES), -1, np.float32)
    for group, rows in enumerate(options):
        table[group, 1 : 1 + len(rows)] = rows
    n_options = np.array([1 + len(rows) for rows in options], np.int64)
    return LayoutSpace(np.array(group_of, np.int64), table, n_options)


def _tensors(node: int, program: LayoutProgram) -> list[int]:
    """Name the nodes that put out what a config lays out: a node's output, input and kernel."""
    return [node, *[u for u in program.operands[node] if program.shapes[u]]][:3]


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


@dataclass(frozen=True)
class LayoutCost:
    """What the configs of a program cost: what the most minor dimension of each tensor does.

        runtime = overhead per node, and moving each tensor that no config lays out
                + sum over the tensors of configurable nodes of their bytes / bandwidth, the minor
                  dimension filled up to 128 lanes
                + sum over their operands of a copy where one is wanted otherwise than it comes

    An unset output has its last dimension minor; an unset operand is taken as it comes. It comes
    as its producer's output, which elementwise nodes and the like hand on from their first operand
    of the same shape.

    Attributes:
        base_ns: what no config changes.
        own_ns: (g, o) of each group by its option: outputs, and operands that no config lays out.
        pairs: (p, 2) groups, of which the first puts out operands of the second.
        pair_ns: (p, o, o) of those operands, by the options of both.
    """

    base_ns: float
    own_ns: NDArray[np.float64]
    pairs: NDArray[np.int64]
    pair_ns: NDArray[np.float64]

    def runtime_ns(self, choices: NDArray[np.int8]) -> NDArray[np.float64]:
        """Return the (c,) noise-free runtimes of choices (c, g)."""
        total = np.full(len(choices), self.base_ns)
        columns = choices.T.astype(np.intp, order="C")
        for column, ns in zip(columns, self.own_ns, strict=True):
            total += ns.take(column)
        for (first, second), ns in zip(self.pairs, self.pair_ns, strict=True):
            total += ns.reshape(-1).take(columns[first] * MOST_OPTIONS + columns[second])
        return total


def layout_cost(program: LayoutProgram, space: LayoutSpace) -> LayoutCost:
    shapes = program.shapes
    n_bytes = [program.element_bytes * math.prod(shape) for shape in shapes]
    n_bytes[-1] = 0  # the tuple of all outputs
    group_of = dict(zip(program.node_config_ids.tolist(), space.group_of.tolist(), strict=True))
    source = _sources(program, group_of)
    minors = space.options[:, :, MINOR].astype(np.int64)  # (g, o, 3), -1 = unset
    own_ns = np.zeros(minors.shape[:2])
    pair_ns: dict[tuple[int, int], NDArray[np.float64]] = {}
    for node, group in group_of.items():
        for place, tensor in enumerate(_tensors(node, program)):
            sizes = np.array(shapes[tensor] or (LANES,))
            waste = -(-sizes // LANES) * LANES / sizes
            moved_ns = n_bytes[tensor] * waste / BYTES_PER_NS
            wanted, last = minors[group, :, place], len(sizes) - 1
            if place == 0:
                own_ns[group] += moved_ns[np.where(wanted < 0, last, wanted)]
                continue
            comes = np.full((1, 1), last)
            if source[tensor] >= 0:
                comes = minors[source[tensor], :, :1]
                comes = np.where(comes < 0, last, comes)
            taken = np.where(wanted < 0, comes, wanted)  # (o or 1, o)
            copy_ns = COPY_OVERHEAD_NS + 2 * n_bytes[tensor] / COPY_BYTES_PER_NS
            operand_ns = moved_ns[taken] + copy_ns * (taken != comes)
            if source[tensor] < 0:
                own_ns[group] += operand_ns[0]
            else:
                pair = source[tensor], group
                pair_ns[pair] = pair_ns.get(pair, 0) + operand_ns
    fixed = sum(size for node, size in enumerate(n_bytes) if node not in group_of)
    base_ns = NODE_OVERHEAD_NS * len(shapes) + fixed / BYTES_PER_NS
    tables = np.array(list(pair_ns.values())).reshape(-1, MOST_OPTIONS, MOST_OPTIONS)
    return LayoutCost(base_ns, own_ns, np.array(list(pair_ns), np.int64).reshape(-1, 2), tables)


def _sources(program: LayoutProgram, group_of: dict[int, int]) -> list[int]:
    """Return the group of configurable nodes that each node's output comes from; -1 = none."""
    shapes, source = program.shapes, list[int]()
    for node, shape in enumerate(shapes):
        handed_on = [source[u] for u in program.operands[node] if shape and shapes[u] == shape]
        source.append(group_of.get(node, handed_on[0] if handed_on else -1))
    return source
