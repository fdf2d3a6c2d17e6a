"""Check and count the files of a tree. Damaged files are listed and stop nothing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.errors import PipelineError
from common.jobs.run_jobs import Job
from common.jobs.workers import INLINE, Workers
from common.progress import each
from data.graph_store.prepare import Prepared, blocks_of, file_weight
from data.graph_store.stored_graph import is_stored, read_graph
from data.graphs.graph import (
    Graph,
    LayoutGraph,
    TileGraph,
    config_hashes,
    distinct_rows,
    graph_content,
    group_means,
)
from data.graphs.node_columns import OPCODE_NAMES
from data.graphs.noise import Noise, measure_noise
from data.labels import labels_of
from data.tree import SPLITS, GraphFile, name_faults

COUNTED = ("n_nodes", "n_edges", "n_configurable", "n_configs", "n_distinct")
# Columns of the printed table, each with its key in `totals`.
COLUMNS = {
    "collection": "collection",
    "split": "split",
    "files": "n_files",
    "bad": "n_bad",
    "labels": "n_labelled",
    "nodes": "n_nodes",
    "edges": "n_edges",
    "configs": "n_configs",
    "distinct": "n_distinct",
    "ceiling": "median_tau",
}
LOW_TAU = 0.5
MAX_NOTES = 10  # on single files, for each split of a collection
MAX_NAMES = 3
MAX_SIZE = 2.0**63


@dataclass(frozen=True)
class AuditRow:
    """Counts of one file, or the fault of a damaged file, whose counts are 0."""

    file: GraphFile
    error: str | None = None  # the reader's line
    notes: tuple[str, ...] = ()  # warnings about the scores
    n_nodes: int = 0
    n_edges: int = 0
    n_configurable: int = 0  # nodes; 0 for tile kernels
    n_configs: int = 0
    n_distinct: int = 0
    is_labelled: bool = False  # whether runtimes are known
    spread: float | None = None  # slowest distinct config / fastest one; None without runtimes
    noise: Noise | None = None  # None if too few configs are repeated
    again_tau: float | None = None  # tau of a second measurement in the manifest
    content: str = ""  # `graph_content`, equal for copies; "" for a bad file

    @property
    def ceiling(self) -> float | None:
        """Return tau between two measurements: of repeated configs, else of all configs."""
        if self.noise is None or math.isnan(self.noise.tau):
            return self.again_tau
        return self.noise.tau


def audit(
    files: Sequence[GraphFile],
    *,
    prepared: Sequence[Prepared] | None = None,
    seed: int = 0,
    store: Path | None = None,
    workers: Workers = INLINE,
    measured: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[AuditRow]:
    """Read files one by one. Files with names that `name_faults` lists are errors.

    Args:
        prepared: Result of `prepare` for the files. Good files are then read from the store, and
            their rows name the file of the store.
        store: Folder of the prepared graphs. Other workers than this process need it.
        measured: Manifest entries of the graphs by submission ID.
    """
    faults = dict(name_faults(files))
    entries = prepared or [
        Prepared(file, None if file in faults else file, faults.get(file)) for file in files
    ]
    entry_of = {entry.source: entry for entry in entries}
    jobs = [
        Job(
            f"audit {block[0].submission_id} and {len(block) - 1} more",
            rows_of,
            ([entry_of[file] for file in block], seed),
            weight=file_weight(block),
        )
        for block in (blocks_of(files) if store else ())
    ]
    if store is None or workers.are_inline(jobs):
        rows = rows_of(entries, seed)
    else:
        rows = workers.do_in_order(jobs, store)
    again = {name: facts.get("again_tau") for name, facts in (measured or {}).items()}
    return [replace(row, again_tau=again.get(row.file.submission_id)) for row in rows]


def rows_of(entries: Sequence[Prepared], seed: int) -> list[AuditRow]:
    return [_row(entry, seed) for entry in each(f"audit {len(entries)} files", entries)]


def _row(entry: Prepared, seed: int) -> AuditRow:
    if entry.stored is None:
        return AuditRow(entry.source, error=entry.error)
    file = entry.stored
    try:
        graph = read_graph(file)
    except PipelineError as error:
        # A fault of the store is no fault of the graph, so the graph is not left out.
        if is_stored(file):
            raise
        return AuditRow(file, error=str(error))
    except MemoryError:
        return AuditRow(file, error=f"{file.path}: does not fit into memory")
    hashes = config_hashes(graph)
    first, group = distinct_rows(hashes)
    mean_ns = group_means(graph.runtime_ns, group)
    has_order = graph.is_labelled and mean_ns.min() < mean_ns.max()
    noise = measure_noise(graph.runtime_ns, group, seed=seed) if has_order else None
    return AuditRow(
        file=file,
        notes=tuple(_notes(graph, len(first), has_order, noise)),
        n_nodes=graph.n_nodes,
        n_edges=len(graph.edge_index),
        n_configurable=len(graph.node_config_ids) if isinstance(graph, LayoutGraph) else 0,
        n_configs=graph.n_configs,
        n_distinct=len(first),
        is_labelled=graph.is_labelled,
        spread=_spread(graph, group) if graph.is_labelled else None,
        noise=noise,
        content=graph_content(graph, hashes),
    )


def _spread(graph: Graph, group: NDArray[np.int64]) -> float:
    mean = group_means(labels_of(graph).runtime, group)
    return float(mean.max() / mean.min())


def _notes(graph: Graph, n_distinct: int, has_order: bool, noise: Noise | None) -> Iterator[str]:
    if graph.file.split != "test" and not graph.is_labelled:
        yield "runtimes are withheld"
    if graph.file.split == "test" and graph.is_labelled:
        yield "runtimes are known, which is unusual in the test split"
    if n_distinct == 1:
        n_rows = graph.n_configs
        same = f"{n_rows} rows have the same config" if n_rows > 1 else "one config"
        yield f"one config measured {n_rows} times" if n_rows > 1 and graph.is_labelled else same
    elif graph.is_labelled and not has_order:
        yield "all configs have the same runtime"
    elif noise is not None and noise.tau < LOW_TAU:
        yield (
            f"much noise: tau {noise.tau:.2f} between two measurements of {noise.n_repeated} "
            f"configs; knowing the truth would score up to about {noise.best_tau:.2f}"
        )
    unknown = np.setdiff1d(graph.node_opcode, range(1, len(OPCODE_NAMES) + 1))
    if len(unknown):
        opcodes = ", ".join(map(str, unknown[:MAX_NAMES]))
        yield f"has opcodes without a name: {opcodes}; expected 1..{len(OPCODE_NAMES)}"
    features = [graph.node_feat, *([graph.config_feat] if isinstance(graph, TileGraph) else [])]
    if (largest := max(float(np.abs(values).max()) for values in features)) >= MAX_SIZE:
        yield f"has a feature of size {largest:.0e}; XLA has no size of 2^63 or more"
    edges = graph.edge_index
    if len(edges) and not (edges[:, 0] > edges[:, 1]).all():
        yield "nodes are not in topological order"


def as_dict(row: AuditRow) -> dict[str, object]:
    values = vars(row).copy()
    file: GraphFile = values.pop("file")
    place = {"id": file.submission_id, "split": file.split, "path": str(file.path)}
    if row.noise:
        noise = asdict(row.noise) | {"best_tau": row.noise.best_tau}
        values["noise"] = {k: None if math.isnan(value) else value for k, value in noise.items()}
    return {**place, **values}


def totals(rows: Sequence[AuditRow]) -> list[dict[str, Any]]:
    """Add up files by collection and split.

    Returns:
        One table row per split of a collection. `median_tau` is the median over the graphs with
        repeated measurements; None without any.
    """
    facts = ("error", "is_labelled", *COUNTED, "ceiling")
    columns = {name: [getattr(row, name) for row in rows] for name in facts}
    columns["collection"] = [row.file.collection.name for row in rows]
    columns["split"] = [row.file.split for row in rows]
    table = pl.DataFrame(columns, schema_overrides={"error": pl.String, "ceiling": pl.Float64})
    return (
        table.group_by("collection", "split", maintain_order=True)
        .agg(
            pl.len().alias("n_files"),
            pl.col("error").count().alias("n_bad"),
            pl.col("is_labelled").sum().alias("n_labelled"),
            pl.col(COUNTED).sum(),
            pl.col("ceiling").median().alias("median_tau"),
        )
        .to_dicts()
    )


def leaks(rows: Sequence[AuditRow]) -> list[str]:
    """Find graphs that an earlier split has too, in the order train, valid, test.

    Names do not matter. Nodes, edges and configs are compared.
    """
    first: dict[tuple[str, str], GraphFile] = {}
    copies: dict[str, list[str]] = {}
    good = (row for row in rows if row.content)
    for row in sorted(good, key=lambda row: SPLITS.index(row.file.split)):
        file = row.file
        earlier = first.setdefault((file.collection.kind, row.content), file)
        if earlier.split != file.split:
            copies.setdefault(file.part, []).append(f"{file.name} ({earlier.part}/{earlier.name})")
    notes = []
    for part, names in copies.items():
        remainder = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        notes.append(
            f"{part}: contains copies of another split's graphs, so that its scores are too good: "
            f"{', '.join(names[:MAX_NAMES])}{remainder}; expected each graph in one split"
        )
    return notes


def file_notes(rows: Sequence[AuditRow]) -> list[str]:
    """List the notes on single files, at most ten for each split of a collection."""
    lines, by_part = list[str](), dict[str, list[str]]()
    for row in rows:
        notes = [f"{row.file.submission_id}: {note}" for note in row.notes]
        by_part.setdefault(row.file.part, []).extend(notes)
    for part, notes in by_part.items():
        lines += notes[:MAX_NOTES]
        if len(notes) > MAX_NOTES:
            lines.append(f"{part}: {len(notes) - MAX_NOTES} more such notes; --json has all")
    return lines
