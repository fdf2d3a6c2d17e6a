"""Check every file of a tree and count what is there; damaged files are listed, not fatal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from data.distinct import distinct_configs, group_means
from data.errors import PipelineError
from data.graph import Graph, LayoutGraph
from data.packing.prepare import Prepared
from data.read import read_graph
from data.tree import GraphFile, duplicate_stems

Progress = Callable[[str, int, int], None]
COUNTED = ("n_nodes", "n_edges", "n_configurable", "n_configs", "n_distinct")


@dataclass(frozen=True)
class AuditRow:
    """What one file holds, or what is wrong with it.

    Attributes:
        file: where it lies.
        error: the reader's line, or None for a good file.
        notes: what a reader of scores should know of it.
        n_nodes, n_edges, n_configurable, n_configs, n_distinct: counts; 0 for a bad file;
            n_configurable is 0 for tile kernels.
        is_labelled: whether runtimes are known.
    """

    file: GraphFile
    error: str | None = None
    notes: tuple[str, ...] = ()
    n_nodes: int = 0
    n_edges: int = 0
    n_configurable: int = 0
    n_configs: int = 0
    n_distinct: int = 0
    is_labelled: bool = False


def audit(
    files: Sequence[GraphFile],
    *,
    prepared: Sequence[Prepared] | None = None,
    progress: Progress | None = None,
) -> list[AuditRow]:
    """Read every file, one in memory at a time; stems used twice in a collection are errors.

    Args:
        prepared: what became of each file on its way into the store; good files are then read
            from there, and their rows name the file of the store.

    Returns:
        One row per file, in the order given.
    """
    known = {} if prepared is None else {id(entry.source): entry for entry in prepared}
    twins = {id(second): first for first, second in duplicate_stems(files)}
    rows = []
    for number, file in enumerate(files, start=1):
        first = twins.get(id(file))
        if first is not None:
            error = (
                f"{file.path}: the name stands in {file.collection.name} already ({first.path}); "
                "expected each graph once, in one split"
            )
            rows.append(AuditRow(file, error=error))
        else:
            entry = known.get(id(file), Prepared(file, file))
            rows.append(
                AuditRow(file, error=entry.error) if entry.error else _audit_file(entry.stored)
            )
        if progress:
            progress("audit", number, len(files))
    return rows


def _audit_file(file: GraphFile | None) -> AuditRow:
    assert file is not None, "without an error a graph is in the store"
    try:
        graph = read_graph(file)
    except PipelineError as error:
        return AuditRow(file, error=str(error))
    except MemoryError:
        return AuditRow(file, error=f"{file.path}: does not fit into memory")
    first, group = distinct_configs(graph)
    return AuditRow(
        file=file,
        notes=tuple(_notes(graph, len(first), group)),
        n_nodes=graph.n_nodes,
        n_edges=len(graph.edge_index),
        n_configurable=len(graph.node_config_ids) if isinstance(graph, LayoutGraph) else 0,
        n_configs=graph.n_configs,
        n_distinct=len(first),
        is_labelled=graph.is_labelled,
    )


def _notes(graph: Graph, n_distinct: int, group: np.ndarray) -> list[str]:
    notes = []
    if graph.file.split != "test" and not graph.is_labelled:
        notes.append("runtimes are withheld")
    if n_distinct == 1:
        notes.append(f"one config measured {graph.n_configs} times")
    elif graph.is_labelled:
        mean_ns = group_means(graph.runtime_ns, group)
        if mean_ns.min() == mean_ns.max():
            notes.append("all configs have the same runtime")
    edges = graph.edge_index
    if len(edges) and not (edges[:, 0] > edges[:, 1]).all():
        notes.append("nodes are not in topological order")
    return notes


def as_dict(row: AuditRow) -> dict[str, object]:
    """Return a row as plain values for JSON."""
    counts = {name: getattr(row, name) for name in COUNTED}
    return {
        "id": row.file.submission_id,
        "split": row.file.split,
        "path": str(row.file.path),
        "error": row.error,
        "notes": list(row.notes),
        "is_labelled": row.is_labelled,
        **counts,
    }


def summary(rows: Sequence[AuditRow]) -> tuple[list[str], list[list[object]]]:
    """Add up files by collection and split; a header and one line each."""
    header = ["collection", "split", "files", "bad", "labelled", "nodes", "configs", "distinct"]
    parts: dict[tuple[str, str], list[AuditRow]] = {}
    for row in rows:
        parts.setdefault((row.file.collection.name, row.file.split), []).append(row)
    lines: list[list[object]] = [
        [
            collection,
            split,
            len(part),
            sum(row.error is not None for row in part),
            sum(row.is_labelled for row in part),
            sum(row.n_nodes for row in part),
            sum(row.n_configs for row in part),
            sum(row.n_distinct for row in part),
        ]
        for (collection, split), part in parts.items()
    ]
    return header, lines
