"""Synthetic trees for the rehearsal: files of one size are made once, then linked."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.rehearsal.cases import Case
from data.npz.write import write_npz
from data.synthetic import GraphSize, write_sized
from data.synthetic.blocks import binary, convolution, unary
from data.synthetic.hlo import Program, ProgramBuilder
from data.synthetic.kernels import tile_configs
from data.synthetic.measure import generator, measured_ns
from data.synthetic.tile_cost import tile_runtime_ns
from data.tree import SPLITS, collection_named

NOISE = 0.005


def write_case(tree: Path, made: Path, case: Case) -> None:
    """Write a case's data below `tree`; layout graphs are taken from `made`, or made there."""
    if case.kernels != (0, 0, 0):
        _write_kernels(tree, case)
        return
    for split in SPLITS:
        for number, size in enumerate(getattr(case, split)):
            source = _made(made, size, case.collection)
            folder = tree / "npz" / collection_named(case.collection).folder / split
            folder.mkdir(parents=True, exist_ok=True)
            os.link(source, folder / f"{split}{number}_{size.name}.npz")


def _made(made: Path, size: GraphSize, collection: str) -> Path:
    """Return the file of a graph of this size, written now if there is none."""
    place = collection_named(collection)
    path = made / "npz" / place.folder / "train" / f"{size.name}.npz"
    return path if path.exists() else write_sized(made, size, collection=place).path


def _write_kernels(tree: Path, case: Case) -> None:
    """Write kernels that differ, of about as many nodes as asked for, and a large one per split."""
    for split, count in zip(SPLITS, case.kernels, strict=True):
        sizes = [case.nodes_per_kernel] * count
        sizes += [case.large_kernel] if case.large_kernel else []
        for number, n_nodes in enumerate(sizes):
            rng = generator(0, "rehearsal", f"{split}/{number}")
            kernel = _kernel(n_nodes, rng)
            config_feat = tile_configs(kernel, case.configs_per_kernel, rng)
            runtime_ns = measured_ns(tile_runtime_ns(kernel, config_feat), NOISE, rng)
            path = tree / "npz" / "tile" / "xla" / split / f"{split}{number}_{n_nodes}.npz"
            arrays: dict[str, NDArray[Any]] = {
                "node_feat": kernel.node_feat,
                "node_opcode": kernel.node_opcode,
                "edge_index": kernel.edge_index,
                "config_feat": config_feat,
                "config_runtime": runtime_ns,
                "config_runtime_normalizers": np.full_like(runtime_ns, runtime_ns[0]),
            }
            write_npz(path, arrays)


def _kernel(n_nodes: int, rng: np.random.Generator) -> Program:
    """Draw a convolution with elementwise steps behind it, of at least `n_nodes` nodes."""
    b = ProgramBuilder()
    batch, width = (int(rng.choice(choices)) for choices in ((16, 32, 64), (128, 192, 256)))
    x = convolution(
        b, b.parameter((batch, 28, 28, width), "f32"), width, size=3, stride=1, weights=[]
    )
    while len(b.instructions) < n_nodes:
        adds = rng.random() < 0.3
        x = binary(b, "add", x, b.parameter(b.shape(x), "f32")) if adds else unary(b, "tanh", x)
    b.end_computation()
    return b.build()
