"""Write synthetic files of the official format: whole trees by a plan, layout graphs of any size.

Runtimes come from the known cost models of `layouts` and `tiles`, with measurement noise.
"""

import hashlib
import itertools
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from common.progress import progress
from common.seeds import generator
from data.graphs.graph import N_LAYOUT_VALUES
from data.npz.write import Member, Streamed, write_npz
from data.synthetic.layouts import default_search, layout_cost, layout_space, random_search
from data.synthetic.programs import (
    GraphArrays,
    LayoutProgram,
    build_program,
    depth_within,
    random_kernel,
    siblings,
    sized_program,
)
from data.synthetic.tiles import tile_configs, tile_runtime_ns
from data.tree import SPLITS, Collection, GraphFile, collection_named
from data.withheld import WITHHELD, file_stem, write_withheld

# Relative measurement noise: log-uniform between these, drawn once per graph.
LAYOUT_NOISE, TILE_NOISE = (0.001, 0.005), (0.002, 0.01)
KERNELS_PER_PROGRAM = 6
CHUNK_BYTES = 2**20

FORM = "NODES:CONFIGURABLE:CONFIGS"
# About ten times the largest real ones; what is larger than that is a slip of the pen.
MAX_NODES, MAX_CONFIGS = 500_000, 1_000_000
# Runtimes of the test split are withheld; graphs of given sizes are labelled.

Range = tuple[int, int]


class SyntheticPlan(NamedTuple):
    """Counts of one synthetic tree: for train, valid and test, or the fewest and most."""

    layout_graphs: tuple[int, int, int]  # of each layout collection
    nodes: Range  # of a layout graph; one layer may already exceed the most
    layout_configs: Range  # of a layout graph
    tile_kernels: tuple[int, int, int]
    tile_configs: Range  # of a kernel, as far as it has that many tilings


PLANS = {
    "tiny": SyntheticPlan((2, 1, 1), (60, 100), (40, 40), (6, 3, 3), (20, 40)),
    "small": SyntheticPlan((10, 4, 4), (150, 500), (150, 300), (60, 20, 20), (20, 300)),
}


def synthesize(out: Path, *, seed: int = 0, plan: SyntheticPlan = PLANS["small"]) -> None:
    """Write a tree of all five collections below `out`, whole or not at all.

    `out`/npz/… is what the official tree is; `out`/private holds the test runtimes.

    Raises:
        UsageError: `out` exists and is not an empty folder.
        PipelineError: the tree cannot be written.
    """
    total = 4 * sum(plan.layout_graphs) + sum(plan.tile_kernels)
    runtimes: dict[str, NDArray[np.int64]] = {}
    normalizers: dict[str, NDArray[np.int64]] = {}
    with _whole_tree(out) as tree:
        graphs = itertools.chain(_layouts(tree, seed, plan), _kernels(tree, seed, plan))
        for written, (file, runtime_ns) in enumerate(graphs, start=1):
            if file.split == "test":
                runtimes[file.submission_id] = runtime_ns
                if file.collection.kind == "tile":
                    normalizers[file.submission_id] = np.full_like(runtime_ns, runtime_ns[0])
            progress("synthesize", written, total)
        write_withheld(tree / WITHHELD, runtimes, normalizers=normalizers)


def _layouts(
    tree: Path, seed: int, plan: SyntheticPlan
) -> Iterator[tuple[GraphFile, NDArray[np.int64]]]:
    """Write each layout graph under both searches; yield file and runtimes (c,)."""
    for source, (split, n_graphs) in itertools.product(
        ("xla", "nlp"), zip(SPLITS, plan.layout_graphs, strict=True)
    ):
        for family, batch in siblings(source, split, n_graphs):
            sizes = f"w{family.width}_b{batch}"
            rng = generator(seed, "size", family.name, sizes)
            depth = depth_within(family, int(rng.integers(*plan.nodes, endpoint=True)))
            program = build_program(family, depth=depth, batch=batch)
            name = f"{family.name}_d{depth}_{sizes}"
            for search in ("default", "random"):
                place = collection_named(f"layout:{source}:{search}")
                rng = generator(seed, "configs", place.name, name)
                n_configs = int(rng.integers(*plan.layout_configs, endpoint=True))
                file = file_in(tree, place, split, file_stem(name, split))
                yield file, write_layout(file, program, n_configs=n_configs, seed=seed, graph=name)


def _kernels(
    tree: Path, seed: int, plan: SyntheticPlan
) -> Iterator[tuple[GraphFile, NDArray[np.int64]]]:
    for split, n_kernels in zip(SPLITS, plan.tile_kernels, strict=True):
        programs = siblings("xla", split, -(-n_kernels // KERNELS_PER_PROGRAM))
        for number in range(n_kernels):
            family, batch = programs[number // KERNELS_PER_PROGRAM]
            program = f"{family.name}_w{family.width}_b{batch}"
            digest = hashlib.blake2b(f"{program}/{number}".encode(), digest_size=8)
            name = f"{program}_{digest.hexdigest()}"
            rng = generator(seed, "tile", name)
            kernel = random_kernel(rng)
            n_configs = int(rng.integers(*plan.tile_configs, endpoint=True))
            file = file_in(tree, collection_named("tile:xla"), split, file_stem(name, split))
            yield file, write_tile(file, kernel, n_configs, rng)


@contextmanager
def _whole_tree(out: Path) -> Iterator[Path]:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; give another one")
    unfinished = out.parent / f".{out.name}.{secrets.token_hex(4)}.tmp"
    try:
        unfinished.mkdir(parents=True)
        yield unfinished
        unfinished.replace(out)
    except OSError as error:
        raise PipelineError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def file_in(tree: Path, collection: Collection, split: str, stem: str) -> GraphFile:
    """Return where a tree has a graph."""
    path = tree / "npz" / collection.folder / split / f"{stem}.npz"
    return GraphFile(collection, split, stem, path)


def _log_uniform(rng: np.random.Generator, limits: tuple[float, float]) -> float:
    return float(np.exp(rng.uniform(*np.log(limits))))


def _measured_ns(
    runtime_ns: NDArray[np.float64], noise: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    factor = np.exp(noise * rng.standard_normal(len(runtime_ns)))
    return np.maximum(1, np.rint(runtime_ns * factor)).astype(np.int64)


def write_tile(
    file: GraphFile, kernel: GraphArrays, n_configs: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw configs of a kernel, measure and write them; return the runtimes (c,) in ns.

    In the test split the file holds runtimes of 0. Row 0 is the default, the normalizer.
    """
    config_feat = tile_configs(kernel, n_configs, rng)
    noise = _log_uniform(rng, TILE_NOISE)
    runtime_ns = _measured_ns(tile_runtime_ns(kernel, config_feat), noise, rng)
    hide = file.split == "test"
    members: dict[str, NDArray[Any]] = {
        "config_feat": config_feat,
        "config_runtime": np.zeros_like(runtime_ns) if hide else runtime_ns,
        "config_runtime_normalizers": np.full_like(runtime_ns, 1 if hide else runtime_ns[0]),
    }
    write_npz(file.path, _nodes(kernel) | members)
    return runtime_ns


def _nodes(graph: GraphArrays) -> dict[str, NDArray[Any]]:
    return {key: getattr(graph, key) for key in ("node_feat", "node_opcode", "edge_index")}


def write_layout(
    file: GraphFile, program: LayoutProgram, *, n_configs: int, seed: int, graph: str
) -> NDArray[np.int64]:
    """Search, measure and write one layout graph by chunks; return its runtimes (c,) in ns.

    The collection says which search makes the configs. Both searches of a `graph` share its space
    of configs and its noise. In the test split the file holds runtimes of 0.
    """
    shared = generator(seed, "space", graph)
    space, noise = layout_space(program, shared), _log_uniform(shared, LAYOUT_NOISE)
    cost, rng = layout_cost(program, space), generator(seed, "search", file.collection.name, graph)
    if file.collection.name.endswith(":random"):
        choices = random_search(space, n_configs, rng)
    else:
        choices = default_search(space, cost, n_configs, rng)
    runtime_ns = _measured_ns(cost.runtime_ns(choices), noise, rng)
    shape = (n_configs, len(program.node_config_ids), N_LAYOUT_VALUES)
    step = max(1, CHUNK_BYTES // (4 * shape[1] * shape[2]))

    def spelled() -> Iterator[NDArray[np.float32]]:
        for start in range(0, n_configs, step):
            yield space.configs(choices[start : start + step])
            progress(graph, min(start + step, n_configs), n_configs)

    members: dict[str, Member] = {
        **_nodes(program),
        "node_config_feat": Streamed(shape, np.float32, spelled),
        "node_config_ids": program.node_config_ids,
        "config_runtime": np.zeros_like(runtime_ns) if file.split == "test" else runtime_ns,
        "node_splits": program.node_splits,
    }
    write_npz(file.path, members)
    return runtime_ns


@dataclass(frozen=True)
class GraphSize:
    """The size of a layout graph: n nodes, of which k are configurable, and c configs."""

    n_nodes: int
    n_configurable: int
    n_configs: int

    @property
    def name(self) -> str:
        """Return a graph's name that tells its size: "n14000_k500_c50000"."""
        return f"n{self.n_nodes}_k{self.n_configurable}_c{self.n_configs}"

    @property
    def config_bytes(self) -> int:
        """Return how many bytes the configs inflate to, in the file's float32."""
        return 4 * 18 * self.n_configurable * self.n_configs


def parse_size(text: str) -> GraphSize:
    """Read a size such as "14000:500:50000".

    Raises:
        UsageError: it is not three whole numbers above 0, or no graph has such a size.
    """
    match = re.fullmatch(r"([1-9]\d*):([1-9]\d*):([1-9]\d*)", text, re.ASCII)
    if not match:
        raise UsageError(f"graph '{text}': expected {FORM}, each at least 1: 14000:500:50000")
    size = GraphSize(*map(int, match.groups()))
    most = (MAX_NODES, size.n_nodes, MAX_CONFIGS)
    if any(given > limit for given, limit in zip(astuple(size), most, strict=True)):
        raise UsageError(
            f"graph '{text}': expected at most {MAX_NODES} nodes, no more configurable ones, and "
            f"{MAX_CONFIGS} configs"
        )
    return size


def synthesize_sizes(
    out: Path,
    sizes: Sequence[GraphSize],
    *,
    collection: Collection | None = None,
    seed: int = 0,
) -> list[GraphFile]:
    """Write one train graph of each size below `out`, all or none.

    The same arguments give the same content.

    Args:
        collection: of layouts: where the graphs lie, and which search makes their configs; by
            default layout:xla:random.

    Raises:
        UsageError: a size is impossible or given twice, or `out` exists and is not an empty folder.
        PipelineError: the tree cannot be written.
    """
    place = collection or collection_named("layout:xla:random")
    if len(set(sizes)) < len(sizes):
        raise UsageError("a graph is given twice; files are named by their size")
    with _whole_tree(out) as tree:
        for size in sizes:
            write_sized(tree, size, collection=place, seed=seed)
    return [file_in(out, place, "train", size.name) for size in sizes]


def write_sized(
    tree: Path,
    size: GraphSize,
    *,
    collection: Collection,
    split: str = "train",
    seed: int = 0,
) -> GraphFile:
    """Write one labelled layout graph of exactly this size into a tree, whole or not at all."""
    file = file_in(tree, collection, split, size.name)
    program = sized_program(size.n_nodes, size.n_configurable)
    write_layout(file, program, n_configs=size.n_configs, seed=seed, graph=size.name)
    return file
