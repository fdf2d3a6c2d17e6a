"""Compile each Triton kernel of the layout network for several GPUs, without a GPU.

`make kernels` writes docs/results/kernels.md. It runs a training step and a ranking of the network
on the CPU, records each launch of a kernel, and compiles the kernels that were launched. It fails
if a kernel needs more shared memory than a card has, or if registers spill to the stack.
"""

import argparse
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import Pool
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks import PAGES, errors_in_one_line, render, write_page
from common.errors import PipelineError
from common.reproducibility import revision
from models.config.recipe import load_recipe
from models.layout import fused_ops
from models.layout.network import sample_loss
from models.training.device import CPU, computing, precision_on
from pipeline.planning.synthetic_graphs import GraphSize, make_workload

LAYOUT = "cross_config_sage"
WIDTHS = 64, 128, 256
# A graph with few configs, the steps of large graphs, those of the recipes, and a ranking.
CONFIGS = 16, 32, 64, 128, fused_ops.MAX_CONFIGS
KIB, REGISTERS, RESERVED_BYTES = 1024, 1 << 16, 1024


@dataclass(frozen=True)
class Card:
    """Limits of a compute capability, from the tables of NVIDIA's CUDA C++ Programming Guide.

    Attributes:
        name: A card of this capability.
        capability: Compute capability, for example 75.
        block_kib: Shared memory of a program, in KiB.
        shared_kib: Shared memory of a multiprocessor, in KiB.
        threads: Threads of a multiprocessor.
        blocks: Programs of a multiprocessor.
    """

    name: str
    capability: int
    block_kib: int
    shared_kib: int
    threads: int
    blocks: int

    def occupancy(self, registers: int, shared: int, warps: int) -> float:
        """Return the share of the threads of a multiprocessor that a kernel can use."""
        per_block = -(-max(registers, 1) // 8) * 8 * 32 * warps
        reserved = shared + RESERVED_BYTES * (self.capability >= 80)
        fitting = REGISTERS // per_block, self.shared_kib * KIB // max(reserved, 1)
        return 32 * warps * min(*fitting, self.threads // (32 * warps), self.blocks) / self.threads


CARDS = (
    Card("T4", 75, block_kib=64, shared_kib=64, threads=1024, blocks=16),
    Card("A100", 80, block_kib=163, shared_kib=164, threads=2048, blocks=32),
    Card("RTX 3090", 86, block_kib=99, shared_kib=100, threads=1536, blocks=16),
    Card("H100", 90, block_kib=227, shared_kib=228, threads=2048, blocks=32),
)


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel: its name, its arguments as Triton's compiler needs them, its tiles."""

    name: str
    arguments: tuple[Any, ...]
    tiles: tuple[tuple[str, int], ...]


@contextmanager
def recorded(card: Card) -> Iterator[list[Launch]]:
    """Record the launches of a `with` block as on a card, and run no kernel."""
    launches: list[Launch] = []

    def record(name: str, _: tuple[int, ...], *arguments: Any, **tiles: int) -> None:
        values = (v.dtype if isinstance(v, Tensor) else v for v in arguments)
        launches.append(Launch(name, tuple(values), tuple(tiles.items())))

    with patch.multiple(
        fused_ops,
        _launch=record,
        _capability=lambda _: divmod(card.capability, 10),
        ops_for=lambda *_: fused_ops,
    ):
        yield launches


def launches_of(card: Card, width: int, n_configs: int, precision: str) -> list[Launch]:
    """Return the launches of a training step and of a ranking, on tensors without values."""
    settings = {"hidden": width, "configs_per_step": n_configs, "statistics": "false"}
    keys = [f"{LAYOUT}.{key}={value}" for key, value in settings.items()]
    size = GraphSize(nodes=4, edges=6, configurable=2, configs=n_configs)
    with recorded(card) as launches, computing(CPU, precision):
        for by_bytes in ("true", "false"):
            recipe = load_recipe("leaderboard", [*keys, f"{LAYOUT}.pool_by_bytes={by_bytes}"])
            workload = make_workload(recipe, LAYOUT, size, n_graphs=1)
            network, inputs = workload.network, workload.graphs[0]
            sample_loss(network, inputs, np.arange(n_configs)).backward()
            network.score_all(inputs, chunk_configs=n_configs)
    return launches


def variants(card: Card, precision: str) -> dict[tuple[Any, ...], tuple[int, Launch]]:
    """Return each different kernel of a precision, with the width of its network."""
    found: dict[tuple[Any, ...], tuple[int, Launch]] = {}
    for width in WIDTHS:
        for n_configs in CONFIGS:
            for launch in launches_of(card, width, n_configs, precision):
                types = tuple(v for v in launch.arguments if isinstance(v, torch.dtype))
                found.setdefault((launch.name, types, launch.tiles), (width, launch))
    return found


@dataclass(frozen=True)
class Compiled:
    """The resources of a compiled kernel. The stack is in bytes per thread."""

    card: Card
    precision: str
    width: int
    name: str
    configs: int  # padded number of configs of a program, 0 if a program has one config
    warps: int
    registers: int
    stack: int
    shared: int

    @property
    def fault(self) -> str:
        """Return the reason why the kernel does not suit the card, "" if it does."""
        place = f"{self.name}, {self.card.name}, width {self.width}, {self.precision}"
        if self.configs:
            place += f", {self.configs} configs"
        if self.shared > self.card.block_kib * KIB:
            limit = self.card.block_kib
            return f"{place}: {self.shared:,} bytes of shared memory; the card has {limit} KiB"
        return f"{place}: a stack of {self.stack} bytes; expected 0" if self.stack else ""


def compiled(card: Card, precision: str, width: int, launch: Launch) -> Compiled:
    """Compile a kernel as a launch on the card does."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import MockTensor, create_function_from_signature

    from models.layout import triton_kernels

    kernel, target = getattr(triton_kernels, launch.name), GPUTarget("cuda", card.capability, 32)
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    arguments = map(MockTensor.wrap_dtype, launch.arguments)
    bound, specialization, options = bind(*arguments, **dict(launch.tiles), debug=False)
    options, signature, constants, attributes = kernel._pack_args(
        backend, dict(launch.tiles) | {"debug": False}, bound, specialization, options
    )
    source = ASTSource(kernel, signature, constants, attributes)
    result = triton.compile(source, target=target, options=options.__dict__)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(result.asm["cubin"])
        file.flush()
        asked = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(asked, capture_output=True, text=True, check=True).stdout  # noqa: S603
    registers, stack = (int(re.search(rf"{key}:(\d+)", usage)[1]) for key in ("REG", "STACK"))  # type: ignore[index]
    return Compiled(
        card, precision, width, launch.name, dict(launch.tiles).get("C", 0),
        options.num_warps, registers, stack, result.metadata.shared,
    )  # fmt: skip


def rows_of(compiled_kernels: Sequence[Compiled]) -> list[list[str]]:
    """Return a row for each kernel, card, type and width. It has the largest of each resource."""
    groups: dict[tuple[Any, ...], list[Compiled]] = {}
    for kernel in compiled_kernels:
        key = kernel.name, kernel.card, kernel.precision, kernel.width
        groups.setdefault(key, []).append(kernel)
    rows = []
    for (name, card, precision, width), group in groups.items():
        most = [max(getattr(k, key) for k in group) for key in ("registers", "stack", "shared")]
        shares = [card.occupancy(k.registers, k.shared, k.warps) for k in group]
        cells = f"{card.name}, {precision}", str(width), *(f"{number:,}" for number in most)
        rows.append([f"`{name}`", *cells, f"{min(shares):.0%}"])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile all kernels, and write the page.

    Args:
        arguments: Arguments of the command line. None for those of the process.

    Raises:
        PipelineError: A kernel does not suit a card.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="compile in N processes")
    n_processes = parser.parse_args(arguments).processes
    work = []
    for card in CARDS:
        half = precision_on(torch.device("cuda"), "auto", version=divmod(card.capability, 10))
        for dtype in (half, torch.float32):
            precision = str(dtype).removeprefix("torch.")
            work += [(card, precision, *found) for found in variants(card, precision).values()]
    with Pool(n_processes) as pool:
        kernels = pool.starmap(compiled, work, chunksize=8)
    kernels.sort(key=lambda k: (k.name, k.card.capability, k.precision, k.width))
    for row in rows_of(kernels):
        print("  ".join(row))  # noqa: T201
    faults = [kernel.fault for kernel in kernels if kernel.fault]
    print(*faults, sep="\n")  # noqa: T201
    if faults:
        raise PipelineError(f"make kernels: {len(faults)} kernels do not suit a card, see above")
    page = render(
        "kernels",
        rows=rows_of(kernels),
        cards=CARDS,
        n=len(kernels),
        configs=", ".join(map(str, CONFIGS)),
        triton=version("triton"),
        revision=revision(),
    )
    write_page(PAGES / "kernels.md", page)


if __name__ == "__main__":
    with errors_in_one_line():
        main()
