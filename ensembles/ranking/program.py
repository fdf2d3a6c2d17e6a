"""Read a graph to rank, with its instruction names, kernels and runs.

Sources are npz files, tuning data and HLO modules. n nodes, c configs, k configurable nodes.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from common.files import open_regular
from data.graph_store.stored_graph import read_graph
from data.graphs.graph import N_LAYOUT_VALUES, Graph, LayoutGraph, TileGraph
from data.graphs.node_columns import OPCODE_NAMES, RANK_MAX
from data.graphs.packing import pack_values
from data.hlo.files import EXPECTED, choose, locate
from data.npz.archive import Archive
from data.tree import Collection, GraphFile, collection_named, file_from_path, names_beside
from features.padding import tensor_ranks

if TYPE_CHECKING:
    from data.hlo.programs import HloProgram

# Collection of a graph from outside the official folders. Models read only its kind.
ANY_OF_KIND = {"layout": "layout:xla:default", "tile": "tile:xla"}
ZIP_START = b"PK\x03\x04"
MAX_CANDIDATE_BYTES = 2 << 30


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
                shapes = node.shapes[:3]
                row[: len(shapes)] = [len(shape) for shape in shapes]
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
        n_nodes = len(self.graph.node_config_ids)
        max_configs = MAX_CANDIDATE_BYTES // (N_LAYOUT_VALUES * n_nodes)
        if not 1 <= n_configs <= max_configs:
            limits = f"expected 1..{max_configs} configs of {n_nodes} nodes"
            raise UsageError(f"{self.path}: {n_configs} candidates; {limits}")
        return self.program.candidates(self.graph.node_config_ids, n_configs, seed=seed)


def load_graphs(
    path: Path | str,
    *,
    collection: str | None = None,
    kernel: str | None = None,
    batch: int | None = None,
) -> list[NamedGraph]:
    """Read the graphs of a file: an npz file, tuning data, or an HLO or StableHLO module.

    Args:
        path: File to read, or a folder that XLA dumped. `FILE#NAME` is one module of it.
        collection: Collection of the graphs, for example "layout:xla:random". By default the
            official folders around the file decide.
        kernel: Kernel or module to read, by name or fingerprint. The default is all.
        batch: The symbolic size of a `jax.export` artifact. None if it has none.

    Returns:
        One graph, or all kernels or modules of the file, with the configs of the file. A module
        has one config, which leaves all layouts to the compiler.

    Raises:
        PipelineError: The file does not exist, is damaged or of another kind, or has no
            configurable node.
        UsageError: The collection or kernel does not exist, or the collection has the other kind.
    """
    target = collection_named(collection) if collection else None
    path, kernel = locate(Path(path), kernel, f"the npz file of a graph, {EXPECTED}")
    graphs = _read_graphs(path, target, kernel, batch)
    for graph in graphs:
        if graph.collection and graph.collection.kind != graph.kind:
            raise UsageError(
                f"{path}: has {graph.kind} configs; --collection {graph.collection.name}: "
                f"expected a {graph.kind} collection"
            )
    return graphs


def _read_graphs(
    path: Path, target: Collection | None, kernel: str | None, batch: int | None
) -> list[NamedGraph]:
    """Open a file once. Its first bytes decide the reader."""
    with open_regular(path) as file:
        is_npz = path.suffix == ".npz" or file.read(len(ZIP_START)) == ZIP_START
        if is_npz and batch is None:
            graph = _from_npz(Archive(path, file), target)
            if kernel is not None:
                choose(path, [(graph.name,)], kernel)
            return [graph]
        from data.hlo.programs import parse_programs

        file.seek(0)
        programs = parse_programs(path, file.read(), kernel, batch)
    return [_from_program(program, path, target) for program in programs]


def load_graph(
    path: Path | str,
    *,
    collection: str | None = None,
    kernel: str | None = None,
    batch: int | None = None,
) -> NamedGraph:
    """Read one graph of a file, with the rules of `load_graphs`.

    Args:
        path: File to read.
        collection: Collection of the graph.
        kernel: Kernel or module of the file.
        batch: The symbolic size of a `jax.export` artifact.

    Raises:
        PipelineError: See `load_graphs`.
        UsageError: See `load_graphs`. Also, the file has several kernels and `kernel` is None.
    """
    graphs = load_graphs(path, collection=collection, kernel=kernel, batch=batch)
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
    fields: dict[str, Any] = {
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
            **fields, config_feat=arrays["config_feat"], runtime_normalizers=normalizers
        )
    else:
        ids, splits = arrays["node_config_ids"], program.graph.node_splits
        packed = pack_values(arrays["node_config_feat"])
        graph = LayoutGraph(**fields, configs=packed, node_config_ids=ids, node_splits=splits)
    runs = configs.run_numbers if configs else None
    return NamedGraph(graph, collection, program, runs, has_configs=bool(configs))


def _from_npz(archive: Archive, target: Collection | None) -> NamedGraph:
    path, split, collection = archive.path, "test", target
    # A file outside the official folders has no collection and split.
    with suppress(PipelineError):
        in_tree = file_from_path(path)
        split, collection = in_tree.split, target or in_tree.collection
    kind = "tile" if "config_feat" in archive.keys else "layout"
    any_of_kind = collection_named(ANY_OF_KIND[kind])
    read_as = collection if collection and collection.kind == kind else any_of_kind
    graph = read_graph(GraphFile(read_as, split, path.stem, path), archive)
    return NamedGraph(graph, collection, names=read_names(path, graph.n_nodes))


def read_names(npz: Path, n_nodes: int) -> tuple[str, ...] | None:
    """Return the instruction names, (n,), in the file next to an npz file, if it exists."""
    path = names_beside(npz)
    if not path.is_file():
        return None
    try:
        names = tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error
    if len(names) != n_nodes:
        raise PipelineError(
            f"{path}: has {len(names)} names; expected {n_nodes}, one for each node"
        )
    return names
