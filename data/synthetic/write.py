"""Write synthetic trees of the official format."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.npz.write import write_npz
from data.synthetic.kernels import random_kernel, tile_configs
from data.synthetic.layout_files import Report, search_configs, write_searched
from data.synthetic.measure import generator, log_uniform, measured_ns
from data.synthetic.networks import LayoutProgram, build_program, depth_for
from data.synthetic.plan import PLANS, Sibling, SyntheticPlan, siblings
from data.synthetic.tile_cost import tile_runtime_ns
from data.synthetic.whole_tree import whole_tree
from data.tree import SPLITS
from data.withheld import WITHHELD, write_withheld

TILE_NOISE = (0.002, 0.01)
KERNELS_PER_PROGRAM = 6


@dataclass
class _Tree:
    """A tree in the making; the two tables gather what the test split hides."""

    folder: Path
    seed: int
    plan: SyntheticPlan
    runtimes: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    normalizers: dict[str, NDArray[np.int64]] = field(default_factory=dict)


def synthesize(
    out: Path,
    *,
    seed: int = 0,
    plan: SyntheticPlan = PLANS["small"],
    report: Report | None = None,
) -> None:
    """Write a tree of all five collections below `out`, whole or not at all.

    `out`/npz/… is what the official tree is; `out`/private holds the test runtimes. The same seed
    and plan give the same bytes.

    Args:
        report: called with (files written, files in all) after each graph.

    Raises:
        UsageError: `out` exists and is not an empty folder.
        PipelineError: the tree cannot be written.
    """
    with whole_tree(out) as folder:
        _write_tree(_Tree(folder, seed, plan), report)


def _write_tree(tree: _Tree, report: Report | None) -> None:
    """Write all collections, then the withheld runtimes."""
    total = 4 * sum(tree.plan.layout_graphs) + sum(tree.plan.tile_kernels)
    files = itertools.chain(_write_layouts(tree), _write_tiles(tree))
    for written, _ in enumerate(files, start=1):
        if report is not None:
            report(written, total)
    path = tree.folder / WITHHELD
    write_withheld(path, tree.runtimes, normalizers=tree.normalizers)


def file_stem(name: str, split: str) -> str:
    """Return a graph's file stem: its name, or 32 hex digits of it in the test split."""
    if split != "test":
        return name
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def _write_layouts(tree: _Tree) -> Iterator[Path]:
    """Write each layout graph under both searches; yield the paths."""
    for source in ("xla", "nlp"):
        for split, n_graphs in zip(SPLITS, tree.plan.layout_graphs, strict=True):
            for sibling in siblings(source, split, n_graphs):
                name, program = sized_program(sibling, nodes=tree.plan.nodes, seed=tree.seed)
                for search in ("default", "random"):
                    collection = f"layout:{source}:{search}"
                    yield _write_layout(tree, program, name, collection=collection, split=split)


def sized_program(
    sibling: Sibling, *, nodes: tuple[int, int], seed: int
) -> tuple[str, LayoutProgram]:
    """Build the sibling as deep as a drawn node count allows; return its name too."""
    label = f"{sibling.family.name}_w{sibling.width}_b{sibling.batch}"
    max_nodes = int(generator(seed, "size", label).integers(*nodes, endpoint=True))
    depth = depth_for(sibling.family, max_nodes=max_nodes, width=sibling.width)
    program = build_program(sibling.family, depth=depth, batch=sibling.batch, width=sibling.width)
    return sibling.name(depth), program


def _write_layout(
    tree: _Tree, program: LayoutProgram, name: str, *, collection: str, split: str
) -> Path:
    """Search, measure and write one graph of one layout collection."""
    search = collection.rsplit(":", 1)[1]
    rng = generator(tree.seed, "measure", search, name)
    n_configs = int(rng.integers(*tree.plan.layout_configs, endpoint=True))
    searched = search_configs(
        program, search=search, n_configs=n_configs, seed=tree.seed, name=name
    )
    stem = file_stem(name, split)
    path = tree.folder / "npz" / collection.replace(":", "/") / split / f"{stem}.npz"
    runtime_ns = write_searched(path, searched, rng=rng, hide=split == "test")
    if split == "test":
        tree.runtimes[f"{collection}:{stem}"] = runtime_ns
    return path


def _write_tiles(tree: _Tree) -> Iterator[Path]:
    """Write the kernels of each split; some come from one program, as in the real data."""
    for split, n_kernels in zip(SPLITS, tree.plan.tile_kernels, strict=True):
        programs = siblings("xla", split, -(-n_kernels // KERNELS_PER_PROGRAM))
        for i in range(n_kernels):
            sibling = programs[i // KERNELS_PER_PROGRAM]
            program = f"{sibling.family.name}_w{sibling.width}_b{sibling.batch}"
            fingerprint = hashlib.blake2b(f"{program}/{i}".encode(), digest_size=8).hexdigest()
            yield _write_tile(tree, split, f"{program}_{fingerprint}")


def _write_tile(tree: _Tree, split: str, name: str) -> Path:
    """Draw, measure and write one tile kernel."""
    rng = generator(tree.seed, "tile", name)
    kernel = random_kernel(rng)
    n_configs = int(rng.integers(*tree.plan.tile_configs, endpoint=True))
    config_feat = tile_configs(kernel, n_configs, rng)
    noise = log_uniform(rng, TILE_NOISE)
    runtime_ns = measured_ns(tile_runtime_ns(kernel, config_feat), noise, rng)
    normalizers = np.full_like(runtime_ns, runtime_ns[0])  # row 0 is the default config
    stem = file_stem(name, split)
    hide = split == "test"
    if hide:
        tree.runtimes[f"tile:xla:{stem}"] = runtime_ns
        tree.normalizers[f"tile:xla:{stem}"] = normalizers
    path = tree.folder / "npz" / "tile" / "xla" / split / f"{stem}.npz"
    write_npz(
        path,
        {
            "node_feat": kernel.node_feat,
            "node_opcode": kernel.node_opcode,
            "edge_index": kernel.edge_index,
            "config_feat": config_feat,
            "config_runtime": np.zeros_like(runtime_ns) if hide else runtime_ns,
            "config_runtime_normalizers": np.ones_like(normalizers) if hide else normalizers,
        },
    )
    return path
