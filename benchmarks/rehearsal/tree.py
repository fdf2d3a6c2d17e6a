"""Synthetic trees for the rehearsal: files of one size are made once, then linked."""

import os
from pathlib import Path

import numpy as np

from benchmarks.rehearsal.cases import Case
from common.seeds import generator
from data.hlo import HloGraph
from data.synthetic import GraphSize, write_sized
from data.synthetic.programs import ProgramBuilder, elementwise_steps
from data.synthetic.write import write_tile
from data.tree import SPLITS, GraphFile, collection_named


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
    place = collection_named(collection)
    path = made / "npz" / place.folder / "train" / f"{size.name}.npz"
    return path if path.exists() else write_sized(made, size, collection=place).path


def _write_kernels(tree: Path, case: Case) -> None:
    place = collection_named("tile:xla")
    for split, count in zip(SPLITS, case.kernels, strict=True):
        sizes = [case.nodes_per_kernel] * count
        sizes += [case.large_kernel] if case.large_kernel else []
        for number, n_nodes in enumerate(sizes):
            rng = generator(0, "rehearsal", f"{split}/{number}")
            stem = f"{split}{number}_{n_nodes}"
            path = tree / "npz" / place.folder / split / f"{stem}.npz"
            file = GraphFile(place, split, stem, path)
            write_tile(file, _kernel(n_nodes, rng), case.configs_per_kernel, rng)


def _kernel(n_nodes: int, rng: np.random.Generator) -> HloGraph:
    b = ProgramBuilder()
    batch, width = (int(rng.choice(choices)) for choices in ((16, 32, 64), (128, 192, 256)))
    x = b.convolve(b.parameter((batch, 28, 28, width)), width)
    while len(b.shapes) < n_nodes:
        x = elementwise_steps(b, x, 1, rng)
    return b.finish()
