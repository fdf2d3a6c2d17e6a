"""Write synthetic files of the official format. Place and seed decide the bytes of each file.

A plan comes first: graphs by name and size, either a few of each part or those of the public
dataset. Runtimes come from the known cost models, with measurement noise.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import UsageError
from common.files import sweep, write_text
from common.jobs.run_jobs import Job
from common.jobs.workers import INLINE, Workers
from common.progress import each, progress
from common.reproducibility import generator
from data.graphs.graph import CONFIGURABLE_SHARE, N_LAYOUT_VALUES, Graph, LayoutGraph
from data.labels import WITHHELD, Labels, file_stem, labels_of, read_withheld, write_withheld
from data.npz.archive import NpzMember, Streamed, write_npz
from data.npz.graphs import KEYS, KEYS_OF
from data.official.published import (
    OTHER_LAYOUT_CONFIGS,
    PartSize,
    graph_sizes,
    official_names,
    official_sizes,
)
from data.synthetic.graphs import (
    RANDOM,
    GraphSize,
    PlannedGraph,
    make_layout_graph,
    make_tile_graph,
    program_name,
    repeated_program,
    sized_graph,
)
from data.tree import COLLECTIONS, SPLITS, Collection, GraphFile, collection_named

# About ten times the largest real sizes. A larger one is probably a typing error.
MAX_NODES, MAX_CONFIGS = 500_000, 1_000_000
KERNELS_PER_PROGRAM, KERNEL_NODES = 6, (2, 40)
NODES_PER_CONFIGURABLE = 16  # in the graphs of PLANS

Range = tuple[int, int]
CHUNK_BYTES = 2**20
# About a tenth of a second on one core, like a small training step; graphs in one job.
BYTES_PER_WEIGHT, BLOCK_GRAPHS = 50 << 20, 10
SEED_FILE = "seed.txt"


def parse_size(text: str) -> GraphSize:
    """Read a size, NODES:CONFIGURABLE:CONFIGS."""
    match = re.fullmatch(r"([1-9]\d*):([1-9]\d*):([1-9]\d*)", text, re.ASCII)
    nodes, configurable, configs = map(int, match.groups()) if match else (0, 0, 0)
    if not 0 < configurable <= nodes <= MAX_NODES or configs > MAX_CONFIGS:
        raise UsageError(
            f"graph '{text}': expected NODES:CONFIGURABLE:CONFIGS, such as 14000:500:50000, each "
            f"at least 1; at most {MAX_NODES} nodes, no more configurable ones, and "
            f"{MAX_CONFIGS} configs"
        )
    size = GraphSize(nodes, configurable, configs)
    repeated_program(sized_graph(size))
    return size


class SyntheticPlan(NamedTuple):
    """Sizes of one synthetic tree: numbers for train, valid and test, or minimum and maximum."""

    layout_graphs: tuple[int, int, int]  # per layout collection
    nodes: Range  # per layout graph
    layout_configs: Range  # per layout graph
    tile_kernels: tuple[int, int, int]
    tile_configs: Range  # per kernel


PLANS = {
    "tiny": SyntheticPlan((2, 1, 1), (110, 140), (40, 40), (6, 3, 3), (20, 40)),
    "small": SyntheticPlan((10, 4, 4), (150, 500), (150, 300), (60, 20, 20), (20, 300)),
}


def planned_graphs(plan: SyntheticPlan, seed: int = 0) -> Iterator[PlannedGraph]:
    """Yield a plan's graphs. Both searches of a layout source have the same programs."""

    def draw(limits: Range, *labels: str) -> int:
        return int(generator(seed, "size", *labels).integers(*limits, endpoint=True))

    splits = list(zip(SPLITS, plan.layout_graphs, strict=True))
    for source, (split, n_graphs) in itertools.product(("xla", "nlp"), splits):
        for number in range(n_graphs):
            name = program_name(source, split, number)
            n_nodes = draw(plan.nodes, name)
            for search in ("default", "random"):
                collection = collection_named(f"layout:{source}:{search}")
                n_configs = draw(plan.layout_configs, collection.name, name)
                size = GraphSize(n_nodes, n_nodes // NODES_PER_CONFIGURABLE, n_configs)
                yield PlannedGraph(collection, split, file_stem(name, split), size, number)
    for split, n_kernels in zip(SPLITS, plan.tile_kernels, strict=True):
        for number in range(n_kernels):
            program = program_name("xla", split, number // KERNELS_PER_PROGRAM)
            digest = hashlib.blake2b(f"{program}/{number}".encode(), digest_size=8)
            name = f"{program}_{digest.hexdigest()}"
            size = GraphSize(draw(KERNEL_NODES, name), 0, draw(plan.tile_configs, "tile", name))
            yield PlannedGraph(collection_named("tile:xla"), split, file_stem(name, split), size)


def published_graphs(
    collections: Sequence[Collection] = COLLECTIONS,
    splits: Sequence[str] = SPLITS,
    share: float = 1.0,
    max_configs: int = MAX_CONFIGS,
) -> list[PlannedGraph]:
    """List the public dataset's graphs. The sizes of each part have the published means.

    `share` of each part is included, at even steps by size, but at least one graph, and two of a
    train split. `max_configs` limits the configs of train and valid graphs.
    """
    names = {collection.name for collection in collections}
    plans: list[PlannedGraph] = []
    for part in official_sizes():
        if part.collection in names and part.split in splits:
            graphs = sorted(_part(part), key=lambda g: g.size.n_nodes * g.size.n_configs)
            n_taken = max(2 if part.split == "train" else 1, round(share * len(graphs)))
            steps = (np.arange(n_taken) + 0.5) * len(graphs) / n_taken
            plans += [graphs[int(step)] for step in steps]
    return [
        graph if graph.split == "test" else replace(graph, size=graph.size.at_most(max_configs))
        for graph in plans
    ]


def _part(part: PartSize) -> Iterator[PlannedGraph]:
    collection = collection_named(part.collection)
    share = CONFIGURABLE_SHARE if collection.kind == "layout" else 0
    names = sorted(official_names()[f"{part.collection}/{part.split}"])[: part.graphs]
    sizes = zip(*(array.tolist() for array in graph_sizes(part)), strict=True)
    for number, (name, (n, c)) in enumerate(zip(names, sizes, strict=True)):
        n_configs = OTHER_LAYOUT_CONFIGS.get(f"{part.collection}:{name}", c)
        size = GraphSize(n, round(share * n), n_configs)
        yield PlannedGraph(collection, part.split, name, size, number)


def synthesize(
    out: Path, graphs: Sequence[PlannedGraph], *, seed: int = 0, workers: Workers = INLINE
) -> None:
    """Write graphs as a tree: `out`/npz like the official one, test runtimes in `out`/private.

    Existing graphs are not written again, so that the same call resumes.

    Raises:
        UsageError: `out` contains other files or graphs of another seed, a graph is planned twice,
            or the number of nodes is too small for the configurable nodes.
    """
    if len(set(graphs)) < len(graphs):
        raise UsageError("a graph occurs twice; files are named by their size")
    _claim(out, seed)
    for folder in {graph.file(out).path.parent for graph in graphs}:
        sweep(folder)
    labels = read_withheld(out) if (out / WITHHELD).exists() else {}
    missing = [
        graph
        for graph in graphs
        if not (file := graph.file(out)).path.exists()
        or (graph.split == "test" and file.submission_id not in labels)
    ]
    blocks = [missing[i : i + BLOCK_GRAPHS] for i in range(0, len(missing), BLOCK_GRAPHS)]
    jobs = [
        Job(
            f"make {block[0].file(out).submission_id} and {len(block) - 1} more",
            write_graphs,
            (out, seed, block),
            weight=sum(1 + graph.size.config_bytes / BYTES_PER_WEIGHT for graph in block),
        )
        for block in blocks
    ]
    is_inline = workers.are_inline(jobs)
    labels |= write_graphs(out, seed, missing) if is_inline else workers.do_in_order(jobs, out)
    if labels:
        write_withheld(out / WITHHELD, labels)


def _claim(out: Path, seed: int) -> None:
    """Record the seed in a new or empty folder, or check the seed of an earlier call."""
    seed_file = out / SEED_FILE
    if not seed_file.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out}: exists and is not an empty folder; give another one")
        write_text(seed_file, f"{seed}\n")
    elif seed_file.read_text() != f"{seed}\n":
        raise UsageError(f"{out}: contains graphs of another seed; expected {seed} in {SEED_FILE}")


def write_sized(tree: Path, size: GraphSize, *, collection: Collection = RANDOM) -> GraphFile:
    """Write one labelled layout graph of exactly this size into a tree, whole or not at all."""
    graph = sized_graph(size, collection)
    write_graphs(tree, 0, [graph])
    return graph.file(tree)


def write_graphs(tree: Path, seed: int, graphs: Sequence[PlannedGraph]) -> list[tuple[str, Labels]]:
    """Write graphs, and return the submission ID and labels of each test graph."""
    labels = []
    for plan in each("synthesize", graphs):
        is_tile = plan.collection.kind == "tile"
        graph = (make_tile_graph if is_tile else make_layout_graph)(plan, seed)
        file = plan.file(tree)
        write_npz(file.path, _members(graph, is_withheld=plan.split == "test"))
        if plan.split == "test":
            labels.append((file.submission_id, labels_of(graph)))
    return labels


def _members(graph: Graph, *, is_withheld: bool) -> dict[str, NpzMember]:
    """Return the arrays of a graph's file. Withheld runtimes are 0, as in the official files."""
    field_of = {key: field for field, key in KEYS.items()}
    keys = KEYS_OF[graph.file.collection.kind]
    members: dict[str, Any] = {key: getattr(graph, field_of.get(key, key), None) for key in keys}
    if is_withheld:
        withheld = np.zeros_like(graph.runtime_ns)
        values = {"config_runtime": withheld, "config_runtime_normalizers": withheld + 1}
        members |= {key: values[key] for key in keys if key in values}
    if isinstance(graph, LayoutGraph):
        shape = (graph.n_configs, len(graph.node_config_ids), N_LAYOUT_VALUES)
        members["node_config_feat"] = Streamed(shape, np.float32, partial(_config_rows, graph))
    return members


def _config_rows(graph: LayoutGraph) -> Iterator[NDArray[np.float32]]:
    step = max(1, CHUNK_BYTES // (4 * len(graph.node_config_ids) * N_LAYOUT_VALUES))
    vectors = graph.configs.vectors.astype(np.float32)
    for start in range(0, graph.n_configs, step):
        rows = np.arange(start, min(start + step, graph.n_configs))
        yield vectors.take(graph.configs.vector_ids(rows), axis=0)
        progress(graph.file.name, start + len(rows), graph.n_configs)
