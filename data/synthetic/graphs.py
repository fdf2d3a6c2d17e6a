"""Synthetic graphs in memory: programs and kernels of any size, with runtimes by a cost model.

The accelerator of the cost model moves whole tiles. For layouts, a tile has 128 elements along a
tensor's most minor dimension. For kernels, it has 8 x 128 elements along the two most minor ones. A
tile that is too large for the scratch memory spills.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.reproducibility import generator
from data.graphs.graph import N_TILE_VALUES, LayoutGraph, TileGraph
from data.graphs.packing import N_VALUES, VALUES_PER_TENSOR, Codebooks, PackedConfigs, vector_codes
from data.hlo.layouts import UNSET, Order, spell_row
from data.synthetic.programs import FAMILIES, Family, Program, Shape, sized_kernel, sized_program
from data.tree import Collection, GraphFile, collection_named

RANDOM = collection_named("layout:xla:random")
# Standard deviation of a measurement's noise relative to the runtime, drawn once per graph.
LAYOUT_NOISE, TILE_NOISE = (0.001, 0.005), (0.002, 0.01)

# In the real files few columns of configurable nodes are distinct: 15 of 56, 26 of 848.
ADJACENT_SHARE = 0.42  # edges between neighbours in the order of nodes
N_OPERANDS_SHARES = (0.1, 0.42, 0.48)  # nodes with 0, 1 and 2 operands, as in the real files
UNTIED_SHARE, MAX_UNTIED = 0.15, 12
FIXED_TENSOR_SHARE = 0.08  # tensors that no config of the graph sets
UNSET_SHARE = 0.11  # configurable nodes that a config leaves to the compiler
REPEATED_SHARE = 0.06  # configs that are measured again
# Near the default, the share of unset nodes is a uniform number to this power.
NEAR_DEFAULT_POWER = 0.25
BYTES_PER_NS = 400.0
COPY_BYTES_PER_NS = 150.0  # copies gather across tiles, far below the memory's bandwidth
COPY_OVERHEAD_NS = 1_000.0
NODE_OVERHEAD_NS = 300.0

SUBLANES, LANES = 8, 128  # of a tile
OUTPUT_BOUNDS = 8  # column of the first bound in a tile config; six bounds, their sum and product
MAX_BOUND = 64  # units; a dimension's own number of units is allowed too
DRAWN_PER_CONFIG = 16  # most of the drawn tiles overflow the scratch memory
TILE_BYTES_PER_NS = 450.0
ELEMENTS_PER_NS = 600.0
STEP_OVERHEAD_NS = 120.0
LAUNCH_NS = 900.0
SCRATCH_BYTES = 4 * 2**20
SPILL_FACTOR, MAX_SPILL = 2.0, 6.0


@dataclass(frozen=True)
class GraphSize:
    """The size of a graph: n nodes, k configurable ones (0 for a kernel), and c configs."""

    n_nodes: int
    n_configurable: int
    n_configs: int

    @property
    def name(self) -> str:
        """Return a graph's name with its size: "n14000_k500_c50000"."""
        return f"n{self.n_nodes}_k{self.n_configurable}_c{self.n_configs}"

    @property
    def config_bytes(self) -> int:
        """Return the size of the configs of a layout graph as float32, in bytes."""
        return 4 * N_VALUES * self.n_configurable * self.n_configs

    def at_most(self, n_configs: int) -> "GraphSize":
        """Return this size with a limit on the number of configs."""
        return replace(self, n_configs=min(n_configs, self.n_configs))


@dataclass(frozen=True)
class PlannedGraph:
    """A graph to make. `family` and `batch` are those of a layout graph's program."""

    collection: Collection
    split: str
    name: str  # its file's stem
    size: GraphSize
    family: Family = FAMILIES["nlp", "train"][0]
    batch: int = 8

    def file(self, tree: Path) -> GraphFile:
        path = tree / "npz" / self.collection.folder / self.split / f"{self.name}.npz"
        return GraphFile(self.collection, self.split, self.name, path)


def sized_graph(size: GraphSize, collection: Collection = RANDOM) -> PlannedGraph:
    """Return the plan of a train graph of exactly this size, with the size as its name."""
    return PlannedGraph(collection, "train", size.name, size)


def make_layout_graph(graph: PlannedGraph, seed: int = 0) -> LayoutGraph:
    """Make a labelled layout graph in memory."""
    size, search = graph.size, graph.collection.name
    program = sized_program(size.n_nodes, size.n_configurable, graph.family, graph.batch)
    space_rng = generator(seed, "space", graph.name)
    options, noise = layout_options(program, space_rng), _log_uniform(space_rng, LAYOUT_NOISE)
    rng = generator(seed, "search", search, graph.name)
    near_default = search.endswith(":default")
    choices = _draw_choices(options, size.n_configs, rng, near_default=near_default)
    configs = PackedConfigs(options, choices)
    return LayoutGraph(
        file=graph.file(Path()),
        node_feat=program.graph.node_feat,
        node_opcode=program.graph.node_opcode,
        edge_index=program.graph.edge_index,
        node_splits=program.graph.node_splits,
        node_config_ids=program.node_config_ids,
        configs=configs,
        runtime_ns=_measured_ns(layout_runtime_ns(program, configs), noise, rng),
    )


def draw_edges(n_nodes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw edges with the distances of real programs, (e, 2), from consumer to producer.

    A generated program repeats a few layers, and the updates of its weights are far from them. Cuts
    lose other edges there than in real graphs. In the seven real layout graphs of the dataset at
    hand, .31 to .45 of the edges have distance 1, .51 to .69 at most 10 and .61 to .86 at most 100.
    Here distance 1 has the probability .42, and the others are log-uniform. Within two edges of
    7 % of the nodes are 6.6 times as many nodes. The real configurable nodes have 5.7 to 7.0 times.
    """
    consumers = np.repeat(np.arange(1, n_nodes), rng.choice(3, n_nodes - 1, p=N_OPERANDS_SHARES))
    furthest = np.maximum(consumers, 2)
    distances = (2 * (furthest / 2) ** rng.random(len(consumers))).astype(np.int64)
    distances[rng.random(len(consumers)) < ADJACENT_SHARE] = 1
    producers = consumers - np.minimum(distances, consumers)
    return np.unique(np.stack([consumers, producers], axis=1), axis=0)


def make_tile_graph(graph: PlannedGraph, seed: int = 0) -> TileGraph:
    """Make a labelled kernel in memory. Its first config is the compiler's default."""
    rng = generator(seed, "tile", graph.split, graph.name)
    kernel = sized_kernel(graph.size.n_nodes, rng)
    config_feat = _tile_configs(kernel, graph.size.n_configs, rng)
    noise = _log_uniform(rng, TILE_NOISE)
    runtime_ns = _measured_ns(tile_runtime_ns(kernel, config_feat), noise, rng)
    return TileGraph(
        file=graph.file(Path()),
        node_feat=kernel.graph.node_feat,
        node_opcode=kernel.graph.node_opcode,
        edge_index=kernel.graph.edge_index,
        config_feat=config_feat,
        runtime_ns=runtime_ns,
        runtime_normalizers=np.full_like(runtime_ns, runtime_ns[0]),
    )


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(limits))))


def _measured_ns(
    runtime_ns: NDArray[np.float64], noise: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    factor = np.exp(noise * rng.standard_normal(len(runtime_ns)))
    return np.maximum(1, np.rint(runtime_ns * factor)).astype(np.int64)


def layout_options(program: Program, rng: np.random.Generator) -> Codebooks:
    """Draw the layouts that configs can give to each configurable node.

    Nodes of equal operation and shapes share a column, except for a few. The first option of each
    column leaves everything to the compiler.
    """
    columns: dict[tuple[object, ...], int] = {}
    options: list[NDArray[np.int64]] = []
    untied_share = min(UNTIED_SHARE, MAX_UNTIED / len(program.node_config_ids))
    column_of = []
    for node in program.node_config_ids.tolist():
        opcode = program.opcodes[node]
        shapes = [program.shapes[v] for v in _laid_out(program, node)]
        separate_node = node if rng.random() < untied_share else None
        signature = (opcode, *shapes, separate_node)
        if signature not in columns:
            columns[signature] = len(columns)
            orders = [_draw_orders(opcode, shape, rng) for shape in shapes]
            vectors = [spell_row(combination) for combination in product(*orders)]
            options.append(np.unique([0, *vector_codes(np.array(vectors)).tolist()]))
        column_of.append(columns[signature])
    codes = np.unique(np.concatenate(options))
    sizes = np.array([len(column_options) for column_options in options])
    table = np.zeros((len(options), sizes.max()), np.int64)
    for row, column_options in zip(table, options, strict=True):
        row[: len(column_options)] = np.searchsorted(codes, column_options)
    return Codebooks(codes, np.array(column_of), table, sizes)


def _laid_out(program: Program, node: int) -> list[int]:
    """Return the nodes of a node's output, input and kernel, whose tensors a config lays out."""
    return [node, *[u for u in program.operands[node] if program.shapes[u]]][:3]


def _draw_orders(opcode: str, shape: Shape, rng: np.random.Generator) -> list[Order]:
    """Draw one or two layouts of a tensor, or the empty one if no config sets the tensor.

    A reshape gets whole orders, other operations two most minor dimensions in either order.
    """
    rank = len(shape)
    if rank < 2 or rng.random() < FIXED_TENSOR_SHARE:
        return [UNSET]
    if opcode == "reshape":
        orders = [tuple(range(rank)), tuple(rng.permutation(rank)[::-1].tolist())]
    else:
        partners = (rank - 2, 0, int(rng.integers(rank - 1)))
        pair = (partners[rng.integers(3)], rank - 1)
        orders = [pair, pair[::-1]]
    return list(dict.fromkeys(orders))


def _draw_choices(
    options: Codebooks, n_configs: int, rng: np.random.Generator, *, near_default: bool
) -> NDArray[np.int8]:
    """Draw the option of each column for each config, (c, m). A few configs occur twice.

    Near the compiler's default, most configs leave nearly all columns to it, and one leaves all.
    """
    shape = (n_configs, len(options.sizes))
    choices = rng.integers(np.minimum(1, options.sizes - 1), options.sizes, shape, dtype=np.int8)
    unset = rng.random((n_configs, 1)) ** NEAR_DEFAULT_POWER if near_default else UNSET_SHARE
    choices[rng.random(shape, dtype=np.float32) < unset] = 0
    repeated = np.flatnonzero(rng.random(n_configs) < REPEATED_SHARE)
    choices[repeated] = choices[rng.integers(0, n_configs, len(repeated))]
    if near_default:
        choices[rng.integers(n_configs)] = 0
    return choices


def layout_runtime_ns(program: Program, configs: PackedConfigs) -> NDArray[np.float64]:
    """Return the runtimes (c,) of configs in ns, without noise.

        runtime = overhead per node, and moving each tensor that no config lays out
                + sum over the tensors of configurable nodes of their bytes / bandwidth, the minor
                  dimension filled up to 128 lanes
                + sum over their operands of a copy if the layout differs from the incoming one

    An unset output has its last dimension minor. An unset operand has the layout of its producer's
    output. Nodes that are not configurable pass on the layout of their first operand of the same
    shape.
    """
    shapes, codebooks = program.shapes, configs.codebooks
    n_bytes = [program.element_bytes * math.prod(shape) for shape in shapes]
    n_bytes[-1] = 0  # the tuple of all outputs
    total_ns = np.full(configs.n_configs, NODE_OVERHEAD_NS * len(shapes))
    minors = configs.vectors[:, ::VALUES_PER_TENSOR]  # (u, 3), -1 = unset
    by_option = minors[codebooks.vectors]  # (m, a, 3)
    by_column = [
        column_minors[index].T
        for column_minors, index in zip(by_option, configs.indices.T, strict=True)
    ]
    column_of = dict(zip(program.node_config_ids.tolist(), codebooks.column_of, strict=True))
    arrives: list[NDArray[np.int8] | int] = []  # the minor dimension of each node's output

    def moved_ns(node: int, minor: NDArray[np.int8]) -> NDArray[np.float64]:
        sizes = np.array(shapes[node] or (LANES,))
        by_dimension = n_bytes[node] * (-(-sizes // LANES) * LANES / sizes) / BYTES_PER_NS
        return np.asarray(by_dimension[minor])

    for node, shape in enumerate(shapes):
        if node not in column_of:
            sources = [arrives[u] for u in program.operands[node] if shape and shapes[u] == shape]
            arrives.append(sources[0] if sources else len(shape) - 1)
            total_ns += n_bytes[node] / BYTES_PER_NS
            continue
        output, *operands = by_column[column_of[node]]  # (c,) each
        output[output < 0] = len(shape) - 1
        arrives.append(output)
        total_ns += moved_ns(node, output)
        for layout, u in zip(operands, _laid_out(program, node)[1:], strict=False):
            actual = np.where(layout < 0, arrives[u], layout)
            copy_ns = COPY_OVERHEAD_NS + 2 * n_bytes[u] / COPY_BYTES_PER_NS
            total_ns += moved_ns(u, actual) + copy_ns * (actual != arrives[u])
    return total_ns


def tile_runtime_ns(kernel: Program, config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the runtimes (c,) of tile configs in ns, without noise.

    A kernel walks a grid of tiles:

        runtime = launch + steps * (overhead + max(arithmetic, spill * traffic of the tile))

    A partly filled tile costs the same as a full one. The traffic of a tile above the scratch limit
    grows with the excess.
    """
    tile = _tile_sizes(kernel, config_feat)
    steps = (-(-np.array(kernel.shapes[-1]) // tile)).prod(axis=1)
    n_bytes = _tile_bytes(kernel, config_feat)
    spill = 1 + np.clip(SPILL_FACTOR * (n_bytes / SCRATCH_BYTES - 1), 0, MAX_SPILL)
    work_ns = tile.prod(axis=1) * (kernel.n_parameters + 1) / ELEMENTS_PER_NS
    busy_ns = np.maximum(work_ns, n_bytes * spill / TILE_BYTES_PER_NS)
    return np.asarray(LAUNCH_NS + steps * (STEP_OVERHEAD_NS + busy_ns))


def _tile_units(shape: Shape) -> NDArray[np.int64]:
    """Return the number of elements in one unit of a bound, by dimension."""
    return np.array([1] * (len(shape) - 2) + [SUBLANES, LANES])


def _tile_sizes(kernel: Program, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the elements of a tile by dimension, (c, rank), rounded up to whole units."""
    shape = kernel.shapes[-1]
    bounds = config_feat[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)]
    return bounds.astype(np.int64) * _tile_units(shape)


def _tile_bytes(kernel: Program, config_feat: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the bytes (c,) of a tile of the output and of each input."""
    elements: NDArray[np.int64] = _tile_sizes(kernel, config_feat).prod(axis=1)
    return elements * (kernel.n_parameters + 1) * kernel.element_bytes


def _tile_configs(kernel: Program, n_configs: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw up to `n_configs` distinct tile configs (c, 24).

    The first one has the largest tile that fits half of the scratch memory. No other one needs more
    than twice the scratch memory.
    """
    shape, n_drawn = kernel.shapes[-1], DRAWN_PER_CONFIG * n_configs
    units = -(-np.array(shape) // _tile_units(shape))
    bounds = [np.array([*range(1, min(n, MAX_BOUND + 1)), n]) for n in units.tolist()]
    lengths = [len(axis_bounds) for axis_bounds in bounds]
    n_all = math.prod(lengths)
    numbers = np.arange(n_all) if n_all <= n_drawn else np.unique(rng.integers(0, n_all, n_drawn))
    numbers[0] = 0  # single units, which always fit
    places = np.unravel_index(numbers, lengths)
    values = np.stack(
        [axis_bounds[place] for axis_bounds, place in zip(bounds, places, strict=True)], axis=1
    )
    rows = np.zeros((len(numbers), N_TILE_VALUES), np.float32)
    rows[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)] = values
    rows[:, OUTPUT_BOUNDS + 6] = values.sum(axis=1)
    rows[:, OUTPUT_BOUNDS + 7] = values.prod(axis=1)
    rows = rows[_tile_bytes(kernel, rows) <= 2 * SCRATCH_BYTES]
    n_bytes = _tile_bytes(kernel, rows)
    default = int(np.argmax(np.where(n_bytes <= SCRATCH_BYTES // 2, n_bytes, -1)))
    further_rows = rng.permutation(np.delete(np.arange(len(rows)), default))[: n_configs - 1]
    return rows[[default, *further_rows.tolist()]]
