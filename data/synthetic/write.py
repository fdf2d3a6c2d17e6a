"""Write synthetic files of the official format, the bytes of each by its place and the seed alone.

Runtimes come from the known cost models of `layouts` and `tiles`, with measurement noise.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from common.atomic import create_text, sweep
from common.errors import PipelineError, UsageError
from common.progress import progress
from common.reproducibility import generator
from data.graphs.graph import N_LAYOUT_VALUES
from data.hlo.graph import HloGraph
from data.npz.write import NpzMember, Streamed, write_npz
from data.synthetic.layouts import layout_cost, layout_space
from data.synthetic.plans import GraphSize, PlannedGraph
from data.synthetic.programs import sized_program
from data.synthetic.tiles import sized_kernel, tile_configs, tile_runtime_ns
from data.tree import Collection, GraphFile, collection_named
from data.withheld import WITHHELD, write_withheld

# Relative measurement noise: log-uniform between these, drawn once per graph.
LAYOUT_NOISE, TILE_NOISE = (0.001, 0.005), (0.002, 0.01)
CHUNK_BYTES = 2**20
SEED_FILE = "seed.txt"
RANDOM = collection_named("layout:xla:random")


def synthesize(out: Path, graphs: Sequence[PlannedGraph], *, seed: int = 0) -> None:
    """Write graphs as a tree below `out`, all or none.

    `out`/npz/… is what the official tree is; `out`/private holds the test runtimes.

    Raises:
        UsageError: `out` exists and is not an empty folder, a graph is given twice, or has too few
            nodes for so many configurable ones.
        PipelineError: the tree cannot be written.
    """
    if len(set(graphs)) < len(graphs):
        raise UsageError("a graph is given twice; files are named by their size")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; give another one")
    runtimes: dict[str, NDArray[np.int64]] = {}
    normalizers: dict[str, NDArray[np.int64]] = {}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as unfinished:
            tree = Path(unfinished) / out.name
            for written, graph in enumerate(graphs, start=1):
                runtime_ns = write_graph(tree, seed, graph)
                if graph.split == "test":
                    name = graph.file(tree).submission_id
                    runtimes[name] = runtime_ns
                    if graph.collection.kind == "tile":
                        normalizers[name] = np.full_like(runtime_ns, runtime_ns[0])
                progress("synthesize", written, len(graphs))
            if runtimes:
                write_withheld(tree / WITHHELD, runtimes, normalizers=normalizers)
            tree.replace(out)
    except OSError as error:
        raise PipelineError(f"{out}: cannot be written: {error.strerror or error}") from error


def write_sized(
    tree: Path, size: GraphSize, *, collection: Collection = RANDOM, seed: int = 0
) -> GraphFile:
    """Write one labelled layout graph of exactly this size into a tree, whole or not at all."""
    graph = PlannedGraph(collection, "train", size.name, size)
    write_graph(tree, seed, graph)
    return graph.file(tree)


def missing_graphs(
    out: Path, graphs: Sequence[PlannedGraph], *, seed: int = 0
) -> list[PlannedGraph]:
    """List what a tree lacks of some graphs; those that are there are whole. Sweeps up first.

    Raises:
        UsageError: the tree's graphs are of another seed.
        PipelineError: the tree cannot be written.
    """
    seed_file = out / SEED_FILE
    if not create_text(seed_file, f"{seed}\n") and seed_file.read_text() != f"{seed}\n":
        raise UsageError(f"{out}: holds graphs of another seed; expected {seed} in {SEED_FILE}")
    for folder in {graph.file(out).path.parent for graph in graphs}:
        sweep(folder)
    return [graph for graph in graphs if not graph.file(out).path.exists()]


def write_graphs(tree: Path, seed: int, graphs: Sequence[PlannedGraph]) -> None:
    """Write graphs into a tree, each whole or not at all."""
    for graph in graphs:
        write_graph(tree, seed, graph)


def write_graph(tree: Path, seed: int, graph: PlannedGraph) -> NDArray[np.int64]:
    """Write one graph into a tree, whole or not at all; return its runtimes (c,) in ns.

    In the test split the file holds runtimes of 0.

    Raises:
        UsageError: it has too few nodes for so many configurable ones.
        PipelineError: the file cannot be written.
    """
    make = _kernel if graph.collection.kind == "tile" else _program
    members, runtime_ns = make(graph, seed)
    write_npz(graph.file(tree).path, members)
    return runtime_ns


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(limits))))


def _measured_ns(
    runtime_ns: NDArray[np.float64], noise: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    factor = np.exp(noise * rng.standard_normal(len(runtime_ns)))
    return np.maximum(1, np.rint(runtime_ns * factor)).astype(np.int64)


def _nodes(graph: HloGraph) -> dict[str, NpzMember]:
    return {key: getattr(graph, key) for key in ("node_feat", "node_opcode", "edge_index")}


def _kernel(graph: PlannedGraph, seed: int) -> tuple[dict[str, NpzMember], NDArray[np.int64]]:
    """Draw configs of a kernel and measure them; row 0 is the default, the normalizer."""
    rng = generator(seed, "tile", graph.split, graph.name)
    kernel, problem = sized_kernel(graph.size.n_nodes, rng)
    config_feat = tile_configs(problem, graph.size.n_configs, rng)
    noise = _log_uniform(rng, TILE_NOISE)
    runtime_ns = _measured_ns(tile_runtime_ns(problem, config_feat), noise, rng)
    hide = graph.split == "test"
    members: dict[str, NpzMember] = {
        "config_feat": config_feat,
        "config_runtime": np.zeros_like(runtime_ns) if hide else runtime_ns,
        "config_runtime_normalizers": np.full_like(runtime_ns, 1 if hide else runtime_ns[0]),
    }
    return _nodes(kernel) | members, runtime_ns


def _program(graph: PlannedGraph, seed: int) -> tuple[dict[str, NpzMember], NDArray[np.int64]]:
    """Draw configs of a program and measure them; they are written by chunks.

    The collection says how near the default they are. Both of a program share its space of configs
    and its noise.
    """
    size, name = graph.size, graph.name
    program = sized_program(size.n_nodes, size.n_configurable, graph.family, graph.batch)
    shared = generator(seed, "space", name)
    space, noise = layout_space(program, shared), _log_uniform(shared, LAYOUT_NOISE)
    cost, rng = layout_cost(program, space), generator(seed, "search", graph.collection.name, name)
    near_default = graph.collection.name.endswith(":default")
    choices = space.draw(size.n_configs, rng, near_default=near_default)
    runtime_ns = _measured_ns(cost.runtime_ns(choices), noise, rng)
    shape = (size.n_configs, size.n_configurable, N_LAYOUT_VALUES)
    step = max(1, CHUNK_BYTES // (4 * shape[1] * shape[2]))

    def spelled() -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(choices), step):
            yield space.configs(choices[start : start + step])
            progress(name, min(start + step, len(choices)), len(choices))

    members: dict[str, NpzMember] = {
        "node_config_feat": Streamed(shape, np.float32, spelled),
        "node_config_ids": program.node_config_ids,
        "config_runtime": np.zeros_like(runtime_ns) if graph.split == "test" else runtime_ns,
        "node_splits": program.node_splits,
    }
    return _nodes(program) | members, runtime_ns
