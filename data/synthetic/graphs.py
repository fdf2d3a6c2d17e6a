"""Synthetic graphs in memory: programs and kernels of any size, with runtimes by a cost model.

A layout graph repeats a program of the embedded sample up to its number of nodes. Its configs
combine the layouts that the sample has of each node. A kernel is a chain of elementwise operations.

The accelerator of the cost model moves rows of 128 elements along a tensor's most minor dimension.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from common.reproducibility import generator
from common.settings import SAMPLE
from data.families import family_of
from data.graph_store.stored_graph import read_layout
from data.graphs.graph import CONFIGURABLE_SHARE, N_TILE_VALUES, LayoutGraph, TileGraph
from data.graphs.node_columns import SHAPE_DIMENSIONS, SHAPE_PRODUCT
from data.graphs.packing import N_VALUES, VALUES_PER_TENSOR, Codebooks, PackedConfigs
from data.hlo.descriptor import message_class
from data.hlo.graph import HloGraph, featurize_module
from data.tree import Collection, GraphFile, collection_named, find_graphs

RANDOM = collection_named("layout:xla:random")
# Standard deviation of a measurement's noise relative to the runtime, drawn once per graph.
LAYOUT_NOISE, TILE_NOISE = (0.001, 0.005), (0.002, 0.01)

ADJACENT_SHARE = 0.42  # edges between neighbours in the order of nodes
N_OPERANDS_SHARES = (0.1, 0.42, 0.48)  # nodes with 0, 1 and 2 operands, as in the real files
UNSET_SHARE = 0.11  # configurable nodes that a config leaves to the compiler
REPEATED_SHARE = 0.06  # configs that are measured again
# Near the default, the share of unset nodes is a uniform number to this power.
NEAR_DEFAULT_POWER = 0.25
LANES = 128
BYTES_PER_NS = 400.0
NODE_OVERHEAD_NS = 10.0
# A tensor that has a layout is copied. The cost is that of its node's output, times this factor.
COPY_FACTOR = 2.0

KERNEL_WIDTHS = (256, 384, 512, 768, 1000, 1024)
ELEMENTWISE = ("tanh", "negate", "exponential", "abs")
F32 = 11  # XLA's number of the element type
OUTPUT_BOUNDS = 8  # column of the first bound in a tile config; six bounds, their sum and product
DRAWN_PER_CONFIG = 4
ELEMENTS_PER_NS = 600.0
STEP_OVERHEAD_NS = 120.0
LAUNCH_NS = 900.0
SCRATCH_ELEMENTS = 2**20

Shape = tuple[int, ...]


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
    """A graph to make. `number` chooses the sample's program that a layout graph repeats."""

    collection: Collection
    split: str
    name: str  # its file's stem
    size: GraphSize
    number: int = 0

    def file(self, tree: Path) -> GraphFile:
        path = tree / "npz" / self.collection.folder / self.split / f"{self.name}.npz"
        return GraphFile(self.collection, self.split, self.name, path)


def sized_graph(size: GraphSize, collection: Collection = RANDOM) -> PlannedGraph:
    """Return the plan of a train graph of exactly this size, with the size as its name."""
    return PlannedGraph(collection, "train", size.name, size)


@cache
def sample_programs(source: str, split: str) -> list[LayoutGraph]:
    """Return the sample's programs of a source and split, one of each family.

    Each has at least the share of configurable nodes of the largest published graph.
    """
    collection = collection_named(f"layout:{source}:random")
    files = find_graphs(SAMPLE, collections=[collection], splits=[split])
    programs = map(read_layout, {family_of(file): file for file in reversed(files)}.values())
    return [p for p in programs if len(p.node_config_ids) >= CONFIGURABLE_SHARE * p.n_nodes]


def program_name(source: str, split: str, number: int) -> str:
    """Return a name of the family of a sample's program. Each number gives another name."""
    programs = sample_programs(source, split)
    turn, place = divmod(number, len(programs))
    return f"{family_of(programs[place].file)}_b{turn + 1}"


def repeated_program(graph: PlannedGraph) -> tuple[LayoutGraph, int, NDArray[np.int64]]:
    """Return the first program from `number` on with enough configurable nodes.

    Returns:
        The program, its node at which the graph begins, and the positions of the configurable
        nodes of the graph, (k,). The graph begins where it has the most candidates for them, and
        they are evenly distributed among these.
    """
    source, size, n_most = graph.collection.name.split(":")[1], graph.size, 0
    programs = sample_programs(source, graph.split)
    for place in range(graph.number, graph.number + len(programs)):
        program = programs[place % len(programs)]
        repeats = np.arange(size.n_nodes + program.n_nodes) % program.n_nodes
        is_candidate = np.isin(repeats, program.node_config_ids)
        n_before: NDArray[np.int64] = np.cumsum(is_candidate) - is_candidate
        start = int(np.argmax(n_before[size.n_nodes :] - n_before[: program.n_nodes]))
        candidates = np.flatnonzero(is_candidate[start : start + size.n_nodes])
        if len(candidates) >= size.n_configurable:
            places = np.linspace(0, len(candidates) - 1, size.n_configurable)
            return program, start, candidates[places.round().astype(np.int64)]
        n_most = max(n_most, len(candidates))
    raise UsageError(
        f"graph {graph.name}: a program of {size.n_nodes} nodes has at most {n_most} configurable "
        f"nodes, fewer than the {size.n_configurable} requested"
    )


def make_layout_graph(graph: PlannedGraph, seed: int = 0) -> LayoutGraph:
    """Make a labelled layout graph in memory."""
    size, search = graph.size, graph.collection.name
    program, start, node_config_ids = repeated_program(graph)
    nodes = (start + np.arange(size.n_nodes)) % program.n_nodes
    # Equal nodes of all copies have equal layouts, as in the real files.
    codebooks = program.configs.codebooks
    places = np.searchsorted(program.node_config_ids, nodes[node_config_ids])
    columns, column_of = np.unique(codebooks.column_of[places], return_inverse=True)
    tables = codebooks.vectors[columns], codebooks.sizes[columns]
    options = Codebooks(codebooks.codes, column_of, *tables)
    noise = _log_uniform(generator(seed, "space", graph.name), LAYOUT_NOISE)
    rng = generator(seed, "search", search, graph.name)
    near_default = search.endswith(":default")
    choices = _draw_choices(options, size.n_configs, rng, near_default=near_default)
    configs, node_feat = PackedConfigs(options, choices), program.node_feat[nodes]
    runtime_ns = layout_runtime_ns(node_feat, node_config_ids, configs)
    return LayoutGraph(
        file=graph.file(Path()),
        node_feat=node_feat,
        node_opcode=program.node_opcode[nodes],
        edge_index=_repeat_edges(program, start, size.n_nodes),
        node_splits=np.array([[0, size.n_nodes]]),
        node_config_ids=node_config_ids,
        configs=configs,
        runtime_ns=_measured_ns(runtime_ns, noise, rng),
    )


def _repeat_edges(program: LayoutGraph, start: int, n_nodes: int) -> NDArray[np.int64]:
    """Return the edges (e, 2) of copies of a program. Each copy reads the end of the one before."""
    begins = np.arange(-start, n_nodes, program.n_nodes)
    edges = (program.edge_index + begins[:, None, None]).reshape(-1, 2)
    edges = np.concatenate([edges, np.stack([begins, begins - 1], axis=1)])
    return np.unique(edges[(edges[:, 1] >= 0) & (edges[:, 0] < n_nodes)], axis=0)


def draw_edges(n_nodes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw edges with the distances of real programs, (e, 2), from consumer to producer.

    A generated program repeats a small one, so its edges are short. Cuts lose other edges there
    than in real graphs. In the seven real layout graphs of the dataset at hand, .31 to .45 of the
    edges have distance 1, .51 to .69 at most 10 and .61 to .86 at most 100. Here distance 1 has the
    probability .42, and the others are log-uniform. Within two edges of 7 % of the nodes are 6.6
    times as many nodes. The real configurable nodes have 5.7 to 7.0 times.
    """
    consumers = np.repeat(np.arange(1, n_nodes), rng.choice(3, n_nodes - 1, p=N_OPERANDS_SHARES))
    furthest = np.maximum(consumers, 2)
    distances = (2 * (furthest / 2) ** rng.random(len(consumers))).astype(np.int64)
    distances[rng.random(len(consumers)) < ADJACENT_SHARE] = 1
    producers = consumers - np.minimum(distances, consumers)
    return np.unique(np.stack([consumers, producers], axis=1), axis=0)


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(limits))))


def _measured_ns(
    runtime_ns: NDArray[np.float64], noise: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    factor = np.exp(noise * rng.standard_normal(len(runtime_ns)))
    return np.maximum(1, np.rint(runtime_ns * factor)).astype(np.int64)


def _draw_choices(
    options: Codebooks, n_configs: int, rng: np.random.Generator, *, near_default: bool
) -> NDArray[np.int8]:
    """Draw the option of each column for each config, (c, m). A few configs occur twice.

    Option 0 leaves all layouts of a node to the compiler. Near the compiler's default, most configs
    leave nearly all columns to it, and one leaves all.
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


def layout_runtime_ns(
    node_feat: NDArray[np.float32], node_config_ids: NDArray[np.int64], configs: PackedConfigs
) -> NDArray[np.float64]:
    """Return the runtimes (c,) of configs in ns, without noise.

        runtime = sum over nodes of overhead + bytes of the output / bandwidth
                + sum over configurable nodes of these bytes, filled up to 128 elements in the most
                  minor dimension, and of a copy for each tensor that has a layout

    An output without a layout has its last dimension minor.
    """
    output_ns = 4 * node_feat[:, SHAPE_PRODUCT].astype(np.float64) / BYTES_PER_NS
    codebooks, vectors = configs.codebooks, configs.vectors[:, ::VALUES_PER_TENSOR]  # (u, 3)
    shapes = node_feat[node_config_ids, SHAPE_DIMENSIONS]
    last = np.maximum(1, (shapes > 0).sum(axis=1)) - 1
    minors = np.where(vectors[:, 0] < 0, last[:, None], vectors[:, 0])  # (k, u)
    sizes = np.maximum(1, np.take_along_axis(shapes, minors, axis=1))
    n_copies = (vectors >= 0).sum(axis=1)
    by_node = np.ceil(sizes / LANES) * LANES / sizes + COPY_FACTOR * n_copies
    by_column = np.zeros((len(codebooks.sizes), len(vectors)))
    np.add.at(by_column, codebooks.column_of, output_ns[node_config_ids, None] * by_node)
    by_option = np.take_along_axis(by_column, codebooks.vectors, axis=1)  # (m, a)
    total_ns = np.full(configs.n_configs, NODE_OVERHEAD_NS * len(node_feat) + output_ns.sum())
    for option_ns, indices in zip(by_option, configs.indices.T, strict=True):
        total_ns += option_ns[indices]
    return total_ns


def make_tile_graph(graph: PlannedGraph, seed: int = 0) -> TileGraph:
    """Make a labelled kernel in memory. Its first config is the compiler's default."""
    rng = generator(seed, "tile", graph.split, graph.name)
    shape = (64, *rng.choice([28, 56], 2).tolist(), int(rng.choice(KERNEL_WIDTHS)))
    kernel = _chain(graph.size.n_nodes, shape, rng)
    config_feat = _tile_configs(shape, graph.size.n_configs, rng)
    noise = _log_uniform(rng, TILE_NOISE)
    runtime_ns = _measured_ns(tile_runtime_ns(shape, config_feat), noise, rng)
    return TileGraph(
        file=graph.file(Path()),
        node_feat=kernel.node_feat,
        node_opcode=kernel.node_opcode,
        edge_index=kernel.edge_index,
        config_feat=config_feat,
        runtime_ns=runtime_ns,
        runtime_normalizers=np.full_like(runtime_ns, runtime_ns[0]),
    )


def _chain(n_nodes: int, shape: Shape, rng: np.random.Generator) -> HloGraph:
    """Return a parameter and elementwise operations, one after the other."""
    module = message_class("HloModuleProto")(name="synthetic", entry_computation_id=1)
    computation = module.computations.add(name="fused", id=1, root_id=n_nodes - 1)
    opcodes = ["parameter", *rng.choice(ELEMENTWISE, n_nodes - 1).tolist()]
    for node, opcode in enumerate(opcodes):
        operation = computation.instructions.add(name=f"{opcode}.{node}", opcode=opcode, id=node)
        operation.operand_ids.extend([node - 1] if node else [])
        operation.shape.element_type = F32
        operation.shape.dimensions.extend(shape)
        operation.shape.layout.minor_to_major.extend(reversed(range(len(shape))))
    return featurize_module(module)


def _tile_configs(shape: Shape, n_configs: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Draw up to `n_configs` distinct tile configs (c, 24)."""
    shares = rng.uniform(0.6, 1, (DRAWN_PER_CONFIG * n_configs, len(shape)))
    bounds = rng.permutation(np.unique(np.rint(shape**shares), axis=0))[:n_configs]
    rows = np.zeros((len(bounds), N_TILE_VALUES), np.float32)
    rows[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)] = bounds
    rows[:, OUTPUT_BOUNDS + 6] = bounds.sum(axis=1)
    rows[:, OUTPUT_BOUNDS + 7] = bounds.prod(axis=1)
    return rows


def tile_runtime_ns(shape: Shape, config_feat: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the runtimes (c,) of tile configs in ns, without noise.

    A kernel walks a grid of tiles:

        runtime = launch + steps * (overhead + elements of a tile * spill)

    The last dimension of a tile is filled up to 128 elements. A partly filled tile costs the same
    as a full one. A tile that is too large for the scratch memory spills.
    """
    bounds = config_feat[:, OUTPUT_BOUNDS : OUTPUT_BOUNDS + len(shape)].astype(np.float64)
    steps = np.ceil(shape / bounds).prod(axis=1)
    elements = bounds[:, :-1].prod(axis=1) * np.ceil(bounds[:, -1] / LANES) * LANES
    spill = np.sqrt(np.maximum(1, elements / SCRATCH_ELEMENTS))
    return np.asarray(LAUNCH_NS + steps * (STEP_OVERHEAD_NS + elements * spill / ELEMENTS_PER_NS))
