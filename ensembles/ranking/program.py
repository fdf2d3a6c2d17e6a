"""Read a graph to rank, with its instruction names, kernels and runs.

Sources are npz files, tuning data and HLO modules. Configs from elsewhere must fit the graph.
Configs are printed in the compiler's terms: minor-to-major lists by instruction, or tile sizes.
n nodes, c configs, k configurable nodes, u distinct layout vectors.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import N_LAYOUT_VALUES, Graph, LayoutGraph, TileGraph
from data.graphs.node_columns import OPCODE_NAMES, RANK_MAX
from data.graphs.packing import HIGHEST, LOWEST, ConfigEncoder, pack_values
from data.hlo.formats import EXPECTED, choose, split_choice
from data.npz.archive import Archive
from data.tree import (
    Collection,
    GraphFile,
    collection_named,
    file_from_path,
    names_beside,
)
from features.padding import tensor_ranks

if TYPE_CHECKING:
    from data.hlo.programs import HloProgram

# Collection of a graph from outside the official folders. Models read only its kind.
ANY_OF_KIND = {"layout": "layout:xla:default", "tile": "tile:xla"}
ZIP_START = b"PK\x03\x04"
MAX_CANDIDATE_BYTES = 2 << 30
COMPILERS_CHOICE = "compiler's choice"
# Of the configurable operations, only this one has no kernel.
ONE_OPERAND = "reshape"
TENSORS = ("output", "input", "kernel")
TILE_BOUNDS = ("kernel_bounds", "output_bounds", "input_bounds")
# Six sizes, their sum and their product.
VALUES_PER_BOUNDS = 8
# Number of configs that are unpacked at a time.
SPELLED_AT_ONCE = 256

Order = tuple[int, ...]


@dataclass(frozen=True)
class NamedGraph:
    """One program or kernel whose configs can be ranked.

    Attributes:
        graph: Arrays of the graph and its configs.
        collection: Collection of the graph, if it is known.
        program: Program of the file. None for an npz file.
        run_numbers: Run of each config in tuning data, (c,) int64. None for other files.
        names: Names of the n instructions from the file next to an npz file, if it exists.
        has_configs: False for an HLO module without configs, whose only config leaves all layouts
            to the compiler.
    """

    graph: Graph
    collection: Collection | None = None
    program: "HloProgram | None" = None
    run_numbers: NDArray[np.int64] | None = None
    names: tuple[str, ...] | None = None
    has_configs: bool = True

    @property
    def kind(self) -> str:
        return "tile" if isinstance(self.graph, TileGraph) else "layout"

    @property
    def path(self) -> Path:
        return self.graph.file.path

    @property
    def name(self) -> str:
        """Return the name of the program: the stem of its file, and the fingerprint of a kernel."""
        return self.graph.file.name

    @property
    def instruction_names(self) -> tuple[str, ...] | None:
        """Return the names of the n instructions, or None if they are unknown."""
        return self.program.graph.instruction_names if self.program else self.names

    def __repr__(self) -> str:
        graph = self.graph
        return f"<{self.kind} graph {self.name}: {graph.n_nodes} nodes, {graph.n_configs} configs>"

    def opcode(self, node: int) -> str:
        """Return the operation of node `node`, for example "convolution"."""
        number = int(self.graph.node_opcode[node])
        return OPCODE_NAMES[number - 1] if 0 < number <= len(OPCODE_NAMES) else "unknown"

    @cached_property
    def tensor_ranks(self) -> NDArray[np.int64]:
        """Return the ranks of output, input and kernel of each configurable node, (k, 3) int64.

        An npz file has only the rank of the output. Unknown ranks are 6, the highest rank.
        """
        assert isinstance(self.graph, LayoutGraph)
        positions = self.graph.node_config_ids
        ranks = np.full((len(positions), 3), RANK_MAX, np.int64)
        ranks[:, 0] = tensor_ranks(self.graph.node_feat)[positions]
        if self.program:
            for row, node in zip(ranks, self.program.nodes_at(positions), strict=True):
                known = [len(shape) for shape in node.shapes[:3]]
                row[: len(known)] = known
        return ranks

    def candidates(self, n_configs: int, *, seed: int = 0) -> NDArray[np.int8]:
        """Draw distinct random layout configs. Config 0 leaves all layouts to the compiler.

        Args:
            n_configs: Highest number of configs, at least 1.
            seed: Seed of the configs.

        Returns:
            Configs, (c, k, 18) int8 with c at most `n_configs`, for `rank`.

        Raises:
            UsageError: The configs are tiles, the file is an npz file (which has no legal
                layouts), or `n_configs` is below 1 or needs over 2 GiB.
        """
        if self.program is None or not isinstance(self.graph, LayoutGraph):
            raise UsageError(
                f"{self.path}: candidates are made for layouts, from an HLO module; this file "
                f"{'is an npz' if self.program is None else 'has tiles'}; rank its own configs"
            )
        max_configs = MAX_CANDIDATE_BYTES // (
            N_LAYOUT_VALUES * max(1, len(self.graph.node_config_ids))
        )
        if not 1 <= n_configs <= max_configs:
            raise UsageError(
                f"{self.path}: {n_configs} candidates; expected 1..{max_configs} configs of "
                f"{len(self.graph.node_config_ids)} nodes"
            )
        return self.program.candidates(self.graph.node_config_ids, n_configs, seed=seed)


def load_graphs(
    path: Path | str, *, collection: str | None = None, kernel: str | None = None
) -> list[NamedGraph]:
    """Read the graphs of a file: an npz file, tuning data, or an HLO or StableHLO module.

    Args:
        path: File to read, or a folder that XLA dumped. `FILE#NAME` is one module of it.
        collection: Collection of the graphs, for example "layout:xla:random". By default the
            official folders around the file decide.
        kernel: Kernel or module to read, by name or fingerprint. The default is all.

    Returns:
        One graph, or all kernels or modules of the file, with the configs of the file. A module
        has one config, which leaves all layouts to the compiler.

    Raises:
        PipelineError: The file does not exist, is damaged or of another kind, or has no
            configurable node.
        UsageError: The collection or kernel does not exist, or the collection has the other kind.
    """
    path, name = split_choice(Path(path))
    kernel = name if kernel is None else kernel
    chosen = collection_named(collection) if collection else None
    if not path.is_file() and not path.is_dir():
        raise PipelineError(f"{path}: no such file; expected the npz file of a graph, {EXPECTED}")
    if _is_npz(path):
        graphs = [_from_npz(path, chosen)]
        if kernel is not None:
            choose(path, [(graphs[0].name,)], kernel)
    else:
        from data.hlo.programs import read_programs

        graphs = [_from_program(program, path, chosen) for program in read_programs(path, kernel)]
    for graph in graphs:
        if graph.collection and graph.collection.kind != graph.kind:
            raise UsageError(
                f"{path}: has {graph.kind} configs; --collection {graph.collection.name}: "
                f"expected a {graph.kind} collection"
            )
    return graphs


def _is_npz(path: Path) -> bool:
    if path.suffix == ".npz" or path.is_dir():
        return path.is_file()
    with path.open("rb") as stream:
        return stream.read(4) == ZIP_START


def load_graph(
    path: Path | str, *, collection: str | None = None, kernel: str | None = None
) -> NamedGraph:
    """Read one graph of a file, with the rules of `load_graphs`.

    Args:
        path: File to read.
        collection: Collection of the graph.
        kernel: Kernel or module of the file.

    Raises:
        PipelineError: See `load_graphs`.
        UsageError: See `load_graphs`. Also, the file has several kernels and `kernel` is None.
    """
    graphs = load_graphs(path, collection=collection, kernel=kernel)
    if len(graphs) == 1:
        return graphs[0]
    from data.hlo.programs import program_name

    stem = program_name(graphs[0].path)
    names = [(graph.name.removeprefix(f"{stem}_"),) for graph in graphs]
    return graphs[choose(graphs[0].path, names, None)]


def _from_program(program: "HloProgram", path: Path, collection: Collection | None) -> NamedGraph:
    configs = program.configs
    kind = configs.kind if configs else "layout"
    arrays = dict(configs.arrays) if configs else program.untuned_arrays()
    shared: dict[str, Any] = {
        "file": GraphFile(collection_named(ANY_OF_KIND[kind]), "test", program.name, path),
        "node_feat": program.graph.node_feat,
        "node_opcode": program.graph.node_opcode,
        "edge_index": program.graph.edge_index,
        "runtime_ns": arrays["config_runtime"],
    }
    graph: Graph
    if kind == "tile":
        normalizers = arrays["config_runtime_normalizers"]
        graph = TileGraph(
            **shared, config_feat=arrays["config_feat"], runtime_normalizers=normalizers
        )
    else:
        graph = LayoutGraph(
            **shared,
            configs=pack_values(arrays["node_config_feat"]),
            node_config_ids=arrays["node_config_ids"],
            node_splits=program.graph.node_splits,
        )
    runs = configs.run_numbers if configs else None
    return NamedGraph(graph, collection, program, runs, has_configs=bool(configs))


def _from_npz(path: Path, chosen: Collection | None) -> NamedGraph:
    split, collection = "test", chosen
    # A file outside the official folders has no collection and split.
    with suppress(PipelineError):
        in_tree = file_from_path(path)
        split, collection = in_tree.split, chosen or in_tree.collection
    with Archive(path) as archive:
        kind = "tile" if "config_feat" in archive.keys else "layout"
    any_of_kind = collection_named(ANY_OF_KIND[kind])
    read_as = collection if collection and collection.kind == kind else any_of_kind
    graph = read_graph(GraphFile(read_as, split, path.stem, path))
    return NamedGraph(graph, collection, names=read_names(path, graph.n_nodes))


def read_names(npz: Path, n_nodes: int) -> tuple[str, ...] | None:
    """Read the instruction names of a graph from the file next to its npz file.

    Returns:
        Names, (n,), or None if there is no such file.
    """
    path = names_beside(npz)
    if not path.is_file():
        return None
    try:
        names = tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error
    if len(names) != n_nodes:
        raise PipelineError(
            f"{path}: has {len(names)} names; expected one for each node, {n_nodes}"
        )
    return names


@dataclass(frozen=True)
class NodeLayouts:
    """Layouts that a config gives to the tensors of one instruction.

    Attributes:
        node: Number of the node.
        name: Name of the instruction. None if the file has no names.
        opcode: Operation, for example "convolution".
        tensors: Minor-to-major order as XLA writes it, or None for the compiler's choice. Keys are
            "output", "input" (left operand) and "kernel" (right operand, except for reshapes).
            Tensors with more than six dimensions have only the six minor-most ones.
    """

    node: int
    name: str | None
    opcode: str
    tensors: dict[str, Order | None]

    @property
    def is_left_open(self) -> bool:
        """Return whether the compiler chooses all layouts."""
        return all(order is None for order in self.tensors.values())

    def as_json(self) -> dict[str, Any]:
        """Return the layouts for JSON, with "compiler's choice" for open ones."""
        named = {"name": self.name} if self.name is not None else {}
        orders = {
            tensor: COMPILERS_CHOICE if order is None else list(order)
            for tensor, order in self.tensors.items()
        }
        return {"node": self.node, **named, "opcode": self.opcode, **orders}


def layouts_of(named: NamedGraph, config: int) -> tuple[NodeLayouts, ...]:
    """Return the layouts of each configurable node in a config."""
    assert isinstance(named.graph, LayoutGraph)
    names = named.instruction_names
    rows = named.graph.configs.rows(np.array([config]))[0]  # (k, 18)
    return tuple(
        NodeLayouts(
            node,
            names[node] if names else None,
            opcode := named.opcode(node),
            {
                tensor: without_end(values.tolist(), -1) or None
                for tensor, values in zip(TENSORS, row.reshape(-1, RANK_MAX), strict=True)
                if tensor != "kernel" or opcode != ONE_OPERAND or values[0] >= 0
            },
        )
        for node, row in zip(named.graph.node_config_ids.tolist(), rows, strict=True)
    )


def tile_of(named: NamedGraph, config: int) -> dict[str, Order]:
    """Return the tile sizes of a config by field: kernel, output and input bounds.

    Tuning data may also have iteration bounds, which models do not read.
    """
    assert isinstance(named.graph, TileGraph)
    bounds = named.graph.config_feat[config].reshape(-1, VALUES_PER_BOUNDS)[:, :RANK_MAX]
    tile = {
        field: without_end([int(size) for size in sizes], 0)
        for field, sizes in zip(TILE_BOUNDS, bounds.tolist(), strict=True)
    }
    if named.program and named.run_numbers is not None:
        run = named.program.runs[int(named.run_numbers[config])]
        iteration = tuple(run.op_config.tile_size_config.iteration_bounds)
        tile |= {"iteration_bounds": iteration} if iteration else {}
    return tile


def without_end(values: list[int], padding: int) -> Order:
    """Return values without the padding at their end.

    >>> without_end([3, 0, 2, 1, -1, -1], -1)
    (3, 0, 2, 1)
    """
    n = len(values)
    while n and values[n - 1] == padding:
        n -= 1
    return tuple(values[:n])


def spelled(order: Order | None) -> str | None:
    """Return an order as XLA writes it.

    Args:
        order: Minor-to-major order. None stays None.

    >>> spelled((1, 0))
    '{1,0}'
    """
    return None if order is None else "{" + ",".join(map(str, order)) + "}"


def change_of(before: NodeLayouts, after: NodeLayouts) -> str:
    """Return the changed layouts of a node, for example "output {1,0} → {0,1}".

    Args:
        after: Layouts in the second config. A minus sign is the compiler's choice.
    """
    old, new = before.tensors, after.tensors
    return ", ".join(
        f"{tensor} {spelled(old.get(tensor)) or '-'} → {spelled(new.get(tensor)) or '-'}"
        for tensor in TENSORS
        if old.get(tensor) != new.get(tensor)
    )


def with_configs(named: NamedGraph, configs: NDArray[Any]) -> NamedGraph:
    """Return a program with other layout configs.

    Args:
        named: Program of layouts.
        configs: Minor-to-major orders of output, input and kernel of each configurable node,
            (c, k, 18). Each order has six values from -1 to 5, and -1 is the compiler's choice.

    Raises:
        UsageError: The configs of the program are tiles.
    """
    graph, values = named.graph, np.asarray(configs)
    if not isinstance(graph, LayoutGraph):
        raise UsageError(f"{named.name}: its configs are tiles; expected a program of layouts")
    n_nodes, source = len(graph.node_config_ids), f"configs of {named.name}"
    if values.shape[1:] != (n_nodes, N_LAYOUT_VALUES) or not len(values):
        expected = f"(c, {n_nodes}, {N_LAYOUT_VALUES})"
        raise PipelineError(f"{source}: have shape {values.shape}; expected {expected}")
    wrong = np.argwhere((values != np.rint(values)) | (values < LOWEST) | (values > HIGHEST))
    if len(wrong):
        config, node, value = wrong[0].tolist()
        raise PipelineError(
            f"{source}: config {config}, node {node}, value {value} is "
            f"{values[config, node, value]}; expected a whole number from {LOWEST} to {HIGHEST}"
        )
    runtime_ns = np.zeros(len(values), np.int64)
    whole = replace(graph, configs=pack_values(values.astype(np.int8)), runtime_ns=runtime_ns)
    result = replace(named, graph=whole, run_numbers=None, has_configs=True)
    check_layout_configs(result, "configs")
    return result


def add_query_configs(graph: LayoutGraph, added: Iterable[NDArray[np.int8]]) -> LayoutGraph:
    """Return a graph with query configs after its own configs.

    Args:
        graph: Graph with layout configs.
        added: Batches of legal configs, (r, k, 18) each.
    """
    encoder = ConfigEncoder(len(graph.node_config_ids))
    for start in range(0, graph.n_configs, SPELLED_AT_ONCE):
        rows = np.arange(start, min(start + SPELLED_AT_ONCE, graph.n_configs))
        encoder.add(graph.configs.rows(rows).astype(np.float32).tobytes())
    for values in added:
        encoder.add(np.ascontiguousarray(values, np.float32).tobytes())
    packed = encoder.packed()
    n_query_configs = packed.n_configs - graph.n_configs
    runtime_ns = np.pad(graph.runtime_ns, (0, n_query_configs))
    return replace(
        graph, configs=packed, runtime_ns=runtime_ns, rows=None, n_query_configs=n_query_configs
    )


def check_layout_configs(named: NamedGraph, source: str) -> None:
    """Check that layout configs order distinct dimensions of the program's tensors."""
    assert isinstance(named.graph, LayoutGraph)
    configs = named.graph.configs
    lists = configs.vectors.reshape(-1, len(TENSORS), RANK_MAX)  # (u, 3, 6)
    ordered = np.sort(lists, axis=2)
    repeats = ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(axis=2)
    has_hole = np.asarray(((lists[..., 1:] >= 0) & (lists[..., :-1] < 0)).any(axis=2))  # (u, 3)
    highest = lists.max(axis=2)  # (u, 3)
    columns = configs.codebooks
    for place, (column, ranks) in enumerate(
        zip(columns.column_of.tolist(), named.tensor_ranks, strict=True)
    ):
        taken = columns.vectors[column, : columns.sizes[column]]
        wrong = repeats[taken] | has_hole[taken] | (highest[taken] >= ranks)
        if wrong.any():
            which, tensor = (int(i) for i in np.argwhere(wrong)[0])
            order, rank = lists[taken[which], tensor].tolist(), int(ranks[tensor])
            node = int(named.graph.node_config_ids[place])
            name = f" '{named.instruction_names[node]}'" if named.instruction_names else ""
            raise PipelineError(
                f"{source}: {named.opcode(node)}{name} (node {node}): {TENSORS[tensor]} is given "
                f"the order {list(without_end(order, -1))}; expected distinct dimensions of "
                f"0..{rank - 1}{', or none' if rank else '; it has none'}: are these configs of "
                "another program?"
            )
