"""Configs of made-up programs and kernels, and the cost models behind their runtimes.

They know an accelerator that moves whole tiles: of layouts, of 128 elements along a tensor's most
minor dimension; of the tiles of elementwise kernels, of 8 x 128 elements along the two minor ones,
and it has a scratch memory.
"""

import math
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.graphs.graph import N_LAYOUT_VALUES, N_TILE_VALUES
from data.graphs.node_columns import OPCODE_NAMES
from data.hlo.graph import HloGraph
from data.synthetic.programs import ELEMENT_SIZES, LANES, LayoutProgram, ProgramBuilder, Shape

SUBLANES = 8
WIDTHS = (256, 384, 512, 768, 1000, 1024)
OUTPUT_BOUNDS = 8  # where they begin in a tile config; their sum and product follow six sizes
TILE_BYTES_PER_NS = 450.0
ELEMENTS_PER_NS = 600.0  # read, or written
STEP_OVERHEAD_NS = 120.0
LAUNCH_NS = 900.0
SCRATCH_BYTES = 4 * 2**20
SPILL, MOST_SPILL = 2.0, 6.0
MOST_BOUND = 64  # besides a dimension's own number of units
DRAWN = 16  # times as many configs as are wanted: most overflow the scratch
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


class TileProblem(NamedTuple):
    """What a kernel's cost depends on."""

    shape: Shape  # of its tensors
    element_bytes: int  # per element
    n_streams: int  # tensors that are read or written once per tile


def sized_kernel(n_nodes: int, rng: np.random.Generator) -> tuple[HloGraph, TileProblem]:
    """Draw one fused elementwise kernel of so many nodes, 2 at least, of many tilings."""
    element_type = "f32" if rng.random() < 0.7 else "bf16"
    b = ProgramBuilder(element_type)
    x = b.parameter((64, *rng.choice([28, 56], 2).tolist(), int(rng.choice(WIDTHS))))
    while len(b.shapes) < n_nodes:
        if n_nodes - len(b.shapes) >= 2 and rng.random() < 0.5:
            x = b.map("multiply", x, b.parameter(b.shapes[x]))
        else:
            x = b.map("tanh", x)
    n_streams = b.opcodes.count("parameter") + 1
    return b.finish(), TileProblem(b.shapes[x], ELEMENT_SIZES[element_type], n_streams)


def tile_units(shape: Shape) -> NDArray[np.int64]:
    """Return how many elements one unit of a bound covers, per dimension of `shape`."""
    units = np.ones(len(shape), np.int64)
    units[-1:] = LANES
    units[-2:-1] = SUBLANES
    return units


def tile_runtime_ns(problem: TileProblem, config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the (c,) noise-free runtimes of tile configs (c, 24).

    A kernel walks a grid of tiles:

        runtime = launch + steps * (overhead + max(arithmetic, spill * traffic of the working set))

    Ragged and unfilled tiles cost as much as full ones. A working set above the scratch limit
    spills: traffic grows with the excess.
    """
    tile = _tile(problem.shape, config_feat)
    steps = (-(-np.array(problem.shape) // tile)).prod(axis=1)
    held = _working_set_bytes(problem, config_feat)
    spill = 1 + np.clip(SPILL * (held / SCRATCH_BYTES - 1), 0, MOST_SPILL)
    work_ns = tile.prod(axis=1) * problem.n_streams / ELEMENTS_PER_NS
    busy_ns = np.maximum(work_ns, held * spill / TILE_BYTES_PER_NS)
    return np.asarray(LAUNCH_NS + steps * (STEP_OVERHEAD_NS + busy_ns))


def _tile(shape: Shape, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the (c, rank) elements of one tile along each dimension, padded to whole units."""
    bounds = config_feat[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)]
    return bounds.astype(np.int64) * tile_units(shape)


def _working_set_bytes(problem: TileProblem, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    elements: NDArray[np.int64] = _tile(problem.shape, config_feat).prod(axis=1)
    return elements * problem.n_streams * problem.element_bytes


def tile_configs(
    problem: TileProblem, n_configs: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw up to `n_configs` distinct tile configs (c, 24); the compiler's default is row 0.

    The default has the largest working set that fits half of the scratch memory; nothing that
    overflows the scratch more than twice is kept. Kernels with few tilings give fewer configs.
    """
    rows = _draw_tiles(problem.shape, DRAWN * n_configs, rng)
    needed = _working_set_bytes(problem, rows)
    rows, needed = rows[needed <= 2 * SCRATCH_BYTES], needed[needed <= 2 * SCRATCH_BYTES]
    default = int(np.argmax(np.where(needed <= SCRATCH_BYTES // 2, needed, -1)))
    others = rng.permutation(np.delete(np.arange(len(rows)), default))[: n_configs - 1]
    return rows[[default, *others.tolist()]]


def _draw_tiles(shape: Shape, n: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw up to `n` distinct tile configs, the one of single units among them."""
    units = [math.ceil(n / unit) for n, unit in zip(shape, tile_units(shape).tolist(), strict=True)]
    bounds = [np.array([*range(1, min(most, MOST_BOUND + 1)), most]) for most in units]
    lengths = [len(choices) for choices in bounds]
    n_all = math.prod(lengths)
    drawn = np.arange(n_all) if n_all <= n else np.unique(rng.integers(0, n_all, n))
    drawn[0] = 0
    places = np.unravel_index(drawn, lengths)
    chosen = np.stack([own[place] for own, place in zip(bounds, places, strict=True)], axis=1)
    rows = np.zeros((len(drawn), N_TILE_VALUES), np.float32)
    rows[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)] = chosen
    rows[:, OUTPUT_BOUNDS + 6] = chosen.sum(axis=1)
    rows[:, OUTPUT_BOUNDS + 7] = chosen.prod(axis=1)
    return rows


@dataclass(frozen=True)
class LayoutSpace:
    """Which configs a program can have: k configurable nodes in g tied groups, c configs.

    A config is kept as its choices (c, g) int8: which option each group takes, 0 = unset.
    """

    group_of: NDArray[np.int64]  # (k,) group of each configurable node
    options: NDArray[np.float32]  # (g, o, 18) rows of configs by group and option, as in files
    n_options: NDArray[np.int64]  # (g,) how many options each group has, 2 at least

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
    """

    base_ns: float  # what no config changes
    # (g, o) of each group by its option: outputs, and operands that no config lays out
    own_ns: NDArray[np.float64]
    pairs: NDArray[np.int64]  # (p, 2) groups: the first puts out operands of the second
    pair_ns: NDArray[np.float64]  # (p, o, o) of those operands, by the options of both

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
