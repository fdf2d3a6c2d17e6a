"""Read what can be ranked in a file: a graph's npz, tuning data, or an HLO module."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.collect.layouts.module import configurable_nodes
from data.graph_store.stored_graph import STORE_SUFFIX
from data.graphs.graph import N_LAYOUT_VALUES, LayoutGraph, TileGraph
from data.hlo.graph import check_layouts
from data.hlo.programs import HloProgram, read_programs
from data.npz.read import Archive
from data.packing.configs import pack_values
from data.read import read_graph
from data.tree import Collection, GraphFile, collection_named, file_from_path
from ensembles.rank.program import NamedGraph

# Models read a graph's kind alone; which collection's models rank it is chosen apart from it.
ANY_OF_KIND = {"layout": "layout:xla:default", "tile": "tile:xla"}
ZIP_START = b"PK\x03\x04"


def load_graphs(path: Path | str, *, collection: str | None = None) -> list[NamedGraph]:
    """Read what can be ranked in a file: an npz, tuning data, or an HLO module.

    Args:
        path: what the file is, is told from its content.
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
    if _is_npz(path):
        return [_from_npz(path, given)]
    graphs = [_from_program(program, path, given) for program in read_programs(path)]
    for graph in graphs:
        _check_kind(graph.kind, given, path)
    return graphs


def load_graph(
    path: Path | str, *, collection: str | None = None, kernel: str | None = None
) -> NamedGraph:
    """Read one graph whose configs can be ranked, from an npz, tuning data, or an HLO module.

    Args:
        path: what the file is, is told from its content.
        collection: the graph's, such as "layout:xla:random"; default: what the folders tell.
        kernel: which of a TuningData's kernels, by name, fingerprint or module.

    Raises:
        PipelineError: no such file, damaged, of another kind, or without a configurable node.
        UsageError: no such collection or kernel, or several kernels and none chosen.
    """
    graphs = load_graphs(path, collection=collection)
    if kernel is None and len(graphs) == 1:
        return graphs[0]
    return chosen_kernel(graphs, kernel)


def chosen_kernel(graphs: Sequence[NamedGraph], kernel: str | None) -> NamedGraph:
    """Return the kernel of that name, fingerprint or module among those of a file.

    Raises:
        UsageError: none or several are; the line lists all.
    """
    found = [graph for graph in graphs if kernel in _names(graph)]
    if len(found) == 1:
        return found[0]
    if not any(map(_module_name, graphs)):
        raise UsageError(
            f"{graphs[0].path}: --kernel '{kernel}': the file holds no kernels by name"
        )
    known = ", ".join(f"{graph.name} ({_module_name(graph)})" for graph in graphs)
    problem = "chosen" if kernel is None else f"called '{kernel}'"
    count = f"{len(graphs)} kernels and none" if kernel is None else f"{len(found)} kernels"
    raise UsageError(f"{graphs[0].path}: {count} {problem}; expected one of {known}")


def _names(graph: NamedGraph) -> set[str]:
    return {graph.name, graph.name.rsplit("_", 1)[-1], _module_name(graph)}


def _module_name(graph: NamedGraph) -> str:
    return graph.program.graph.name if graph.program else ""


def _from_program(program: HloProgram, path: Path, collection: Collection | None) -> NamedGraph:
    """Return an HLO program as a graph that has its tuned configs, or one that is all -1.

    Raises:
        PipelineError: there is no configurable node, or a tensor has too many dimensions.
    """
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
    numbers = configs.run_numbers if configs else None
    if kind == "tile":
        normalizers = arrays["config_runtime_normalizers"]
        tiles = arrays["config_feat"]
        kernel = TileGraph(**shared, config_feat=tiles, runtime_normalizers=normalizers)
        return NamedGraph(kernel, collection, program, numbers)
    graph = LayoutGraph(
        **shared,
        configs=pack_values(arrays["node_config_feat"]),
        node_config_ids=arrays["node_config_ids"],
        node_splits=program.graph.node_splits,
    )
    return NamedGraph(graph, collection, program, numbers)


def _left_to_the_compiler(program: HloProgram) -> dict[str, NDArray[Any]]:
    """Return the config arrays of a module that has none: one config, all of it -1."""
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


def _is_npz(path: Path) -> bool:
    """Tell an npz, whole or damaged, from a protobuf file: by its name or its first bytes."""
    with path.open("rb") as stream:
        return path.suffix in {".npz", STORE_SUFFIX} or stream.read(4) == ZIP_START


def _from_npz(path: Path, given: Collection | None) -> NamedGraph:
    """Read a graph's npz, whose keys tell the kind, or its file in the store."""
    told = given or _told_by_folders(path)
    if told and path.suffix == STORE_SUFFIX:
        kind = told.kind
    else:
        with Archive(path) as archive:
            kind = "tile" if "config_feat" in archive.keys else "layout"
    _check_kind(kind, told, path)
    read_as = told or collection_named(ANY_OF_KIND[kind])
    return NamedGraph(read_graph(GraphFile(read_as, "test", path.stem, path)), told)


def _told_by_folders(path: Path) -> Collection | None:
    try:
        return file_from_path(path).collection
    except PipelineError:
        return None


def _check_kind(kind: str, collection: Collection | None, path: Path) -> None:
    if collection and collection.kind != kind:
        raise UsageError(
            f"{path}: holds {kind} configs, but its collection is {collection.name}; "
            f"expected a {kind} collection"
        )
