"""A graph to rank, with what its file says beside the arrays: instruction names, kernel, runs.

It is read from a graph's npz, tuning data, or an HLO module. n nodes, c configs, k configurable
nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.collect.layouts import candidate_configs, configurable_nodes, nodes_at
from data.graphs.graph import N_LAYOUT_VALUES, Graph, LayoutGraph, TileGraph
from data.graphs.node_columns import OPCODE_NAMES, RANK_MAX, tensor_ranks
from data.hlo.graph import check_layouts
from data.hlo.programs import HloProgram, read_programs
from data.npz.archive import Archive
from data.packing import pack_values
from data.read import read_graph
from data.tree import Collection, GraphFile, collection_named, file_from_path

# Models read a graph's kind alone; which collection's models rank it is chosen apart from it.
ANY_OF_KIND = {"layout": "layout:xla:default", "tile": "tile:xla"}
ZIP_START = b"PK\x03\x04"
MOST_CANDIDATE_BYTES = 2 << 30


@dataclass(frozen=True)
class NamedGraph:
    """One program or kernel whose configs can be ranked."""

    graph: Graph
    collection: Collection | None = None
    program: HloProgram | None = None  # what it was made of; None of an npz file
    run_numbers: NDArray[np.int64] | None = None  # (c,) each config's run in the file, if it is one

    @property
    def kind(self) -> str:
        """Return "layout" or "tile"."""
        return "tile" if isinstance(self.graph, TileGraph) else "layout"

    @property
    def path(self) -> Path:
        """The file that it was read from."""
        return self.graph.file.path

    @property
    def name(self) -> str:
        """The program's name: its file's stem, and a kernel's fingerprint."""
        return self.graph.file.name

    @property
    def instruction_names(self) -> tuple[str, ...] | None:
        """The names of the n instructions; None where the file has none, as in npz."""
        return self.program.graph.instruction_names if self.program else None

    def __repr__(self) -> str:
        """Say what it is in one line."""
        graph = self.graph
        return f"<{self.kind} graph {self.name}: {graph.n_nodes} nodes, {graph.n_configs} configs>"

    def opcode(self, node: int) -> str:
        """Return the operation of a node, such as "convolution"."""
        number = int(self.graph.node_opcode[node])
        return OPCODE_NAMES[number - 1] if 0 < number <= len(OPCODE_NAMES) else "unknown"

    @cached_property
    def tensor_ranks(self) -> NDArray[np.int64]:
        """Return (k, 3) int64 ranks of output, input and kernel of each configurable node.

        6, the most that there is, where nothing tells: an npz file tells the output's alone.
        """
        assert isinstance(self.graph, LayoutGraph)
        positions = self.graph.node_config_ids
        ranks = np.full((len(positions), 3), RANK_MAX, np.int64)
        ranks[:, 0] = tensor_ranks(self.graph.node_feat)[positions]
        if self.program:
            for row, node in zip(
                ranks, nodes_at(self.program.module, positions.tolist()), strict=True
            ):
                known = [len(shape) for shape in node.shapes[:3]]
                row[: len(known)] = known
        return ranks

    def candidates(self, n_configs: int, *, seed: int = 0) -> NDArray[np.int8]:
        """Draw distinct random layout configs; config 0 leaves all to the compiler.

        Returns:
            (c, k, 18) int8, c at most `n_configs`, for `rank`.

        Raises:
            UsageError: the configs are tiles, an npz file does not tell what layouts are legal, or
                a number that is not above 0 or whose configs take over 2 GiB.
        """
        if self.program is None or not isinstance(self.graph, LayoutGraph):
            raise UsageError(
                f"{self.path}: candidates are made for layouts, from an HLO module; this file "
                f"{'is an npz' if self.program is None else 'holds tiles'}; rank its own configs"
            )
        most = MOST_CANDIDATE_BYTES // (N_LAYOUT_VALUES * max(1, len(self.graph.node_config_ids)))
        if not 1 <= n_configs <= most:
            raise UsageError(
                f"{self.path}: {n_configs} candidates; expected 1..{most} configs of "
                f"{len(self.graph.node_config_ids)} nodes"
            )
        nodes = nodes_at(self.program.module, self.graph.node_config_ids.tolist())
        return candidate_configs(nodes, n_configs, seed=seed)


def load_graphs(path: Path | str, *, collection: str | None = None) -> list[NamedGraph]:
    """Read what can be ranked in a file: an npz, tuning data, or an HLO module.

    Args:
        collection: the graphs', such as "layout:xla:random"; default: what the folders tell.

    Returns:
        One graph, or every kernel of a TuningData. Configs are the file's own; an HLO module has
        one, which leaves all to the compiler.

    Raises:
        PipelineError: no such file, damaged, of another kind, or without a configurable node.
        UsageError: no such collection, or one of the other kind.
    """
    path = Path(path)
    given = collection_named(collection) if collection else None
    if not path.is_file():
        raise PipelineError(f"{path}: no such file; expected a graph's npz, or a protobuf file")
    with path.open("rb") as stream:
        is_npz = path.suffix == ".npz" or stream.read(4) == ZIP_START
    if is_npz:
        graphs = [_from_npz(path, given)]
    else:
        graphs = [_from_program(program, path, given) for program in read_programs(path)]
    for graph in graphs:
        if graph.collection and graph.collection.kind != graph.kind:
            raise UsageError(
                f"{path}: holds {graph.kind} configs, but its collection is "
                f"{graph.collection.name}; expected a {graph.kind} collection"
            )
    return graphs


def load_graph(
    path: Path | str, *, collection: str | None = None, kernel: str | None = None
) -> NamedGraph:
    """Read one graph whose configs can be ranked, from an npz, tuning data, or an HLO module.

    Args:
        collection: the graph's, such as "layout:xla:random"; default: what the folders tell.
        kernel: which of a TuningData's kernels, by name, fingerprint or module.

    Raises:
        PipelineError: no such file, damaged, of another kind, or without a configurable node.
        UsageError: no such collection or kernel, or several kernels and none chosen.
    """
    graphs = load_graphs(path, collection=collection)
    return graphs[0] if kernel is None and len(graphs) == 1 else chosen_kernel(graphs, kernel)


def chosen_kernel(graphs: Sequence[NamedGraph], kernel: str | None) -> NamedGraph:
    """Return the kernel of that name, fingerprint or module among those of a file.

    Raises:
        UsageError: none or several are; the line lists all.
    """
    found = [
        graph
        for graph in graphs
        if kernel in (graph.name, graph.name.rsplit("_", 1)[-1], _module_name(graph))
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{graph.name} ({_module_name(graph)})" for graph in graphs)
    problem = "chosen" if kernel is None else f"called '{kernel}'"
    count = f"{len(graphs)} kernels and none" if kernel is None else f"{len(found)} kernels"
    raise UsageError(f"{graphs[0].path}: {count} {problem}; expected one of {known}")


def _module_name(graph: NamedGraph) -> str:
    return graph.program.graph.name if graph.program else ""


def _from_program(program: HloProgram, path: Path, collection: Collection | None) -> NamedGraph:
    configs = program.configs
    kind = configs.kind if configs else "layout"
    arrays = dict(configs.arrays) if configs else _left_to_the_compiler(program)
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
    return NamedGraph(graph, collection, program, configs.run_numbers if configs else None)


def _left_to_the_compiler(program: HloProgram) -> dict[str, NDArray[Any]]:
    check_layouts(program.graph, program.source)
    nodes = configurable_nodes(program.module)
    if not nodes:
        raise PipelineError(
            f"{program.source}: the module has no convolution, dot or reshape with dimensions to "
            "order, so no layouts to rank; expected at least one"
        )
    return {
        "node_config_feat": np.full((1, len(nodes), N_LAYOUT_VALUES), -1, np.int8),
        "node_config_ids": np.array([node.position for node in nodes], np.int64),
        "config_runtime": np.zeros(1, np.int64),
    }


def _from_npz(path: Path, given: Collection | None) -> NamedGraph:
    split, told = "test", given
    try:
        in_tree = file_from_path(path)
        split, told = in_tree.split, given or in_tree.collection
    except PipelineError:
        pass  # outside the official folders
    with Archive(path) as archive:
        kind = "tile" if "config_feat" in archive.keys else "layout"
    read_as = told if told and told.kind == kind else collection_named(ANY_OF_KIND[kind])
    return NamedGraph(read_graph(GraphFile(read_as, split, path.stem, path)), told)
