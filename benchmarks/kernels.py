"""Compile each Triton kernel of the layout network for several GPUs, without a GPU.

`make kernels` writes docs/results/kernels.md. It runs a training step and a ranking of the network
on the CPU, records each launch of a kernel, and compiles the kernels that were launched. It fails
if a kernel needs more shared memory than a card has, or if registers spill to the stack.
"""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import product
from multiprocessing import Pool
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks import PAGES, errors_in_one_line, write_page
from common.errors import PipelineError
from data.synthetic.graphs import GraphSize, make_layout_graph, sized_graph
from features.scaling import fit_node_scaler
from models.config.recipe import load_recipe
from models.layout import fused_ops
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import layout_inputs
from models.layout.network import sample_loss
from models.training.device import CPU, GPU, computing, precision_on

LAYOUT = "cross_config_sage"
WIDTHS = 64, 128, 256
# Steps of large graphs have 16 to 96 configs, those of the recipes up to 128, and rankings more.
CONFIGS = 16, 32, 64, 128, fused_ops.MAX_CONFIGS
N_PROCESSES, KIB = 2, 1024


class Card(NamedTuple):
    """A GPU with the limits of its capability in NVIDIA's CUDA C++ Programming Guide."""

    name: str
    capability: int
    block_kib: int  # shared memory of a program
    shared_kib: int  # shared memory of a multiprocessor
    threads: int  # of a multiprocessor
    blocks: int  # programs of a multiprocessor

    def occupancy(self, registers: int, shared: int, warps: int) -> float:
        """Return the share of the threads of a multiprocessor that a kernel can use."""
        by_registers = 65_536 // (-(-max(registers, 1) // 8) * 8 * 32 * warps)
        # From capability 8.0 on, CUDA takes 1 KiB of each program.
        shared = max(shared + KIB * (self.capability >= 80), 1)
        by_memory, by_threads = self.shared_kib * KIB // shared, self.threads // (32 * warps)
        return 32 * warps * min(by_registers, by_memory, by_threads, self.blocks) / self.threads


CARDS: Sequence[Card] = (
    Card("T4", 75, block_kib=64, shared_kib=64, threads=1024, blocks=16),
    Card("A100", 80, block_kib=163, shared_kib=164, threads=2048, blocks=32),
    Card("RTX 3090", 86, block_kib=99, shared_kib=100, threads=1536, blocks=16),
    Card("H100", 90, block_kib=227, shared_kib=228, threads=2048, blocks=32),
)


class Launch(NamedTuple):
    """A launch on a card: the kernel, its arguments with types in place of tensors, its tiles."""

    card: Card
    precision: str
    width: int
    name: str
    arguments: tuple[Any, ...]
    tiles: tuple[tuple[str, int], ...]


class KernelResources(NamedTuple):
    """The resources of a compiled kernel. The stack is in bytes per thread."""

    launch: Launch
    warps: int
    registers: int
    stack: int
    shared: int

    def fault(self) -> str:
        """Return the reason why the kernel does not suit the card, "" if it does."""
        card, precision, width, name, _, tiles = self.launch
        place = f"{name}, {card.name}, width {width}, {precision}, {dict(tiles)}"
        if self.shared > card.block_kib * KIB:
            return f"{place}: {self.shared:,} bytes of shared memory; expected {card.block_kib} KiB"
        return f"{place}: a stack of {self.stack} bytes; expected 0" if self.stack else ""


@contextmanager
def recorded(card: Card, precision: str, width: int) -> Iterator[list[Launch]]:
    """Record the launches of a `with` block as on a card, and run no kernel."""
    launches: list[Launch] = []

    def record(name: str, _: tuple[int, ...], *arguments: Any, **tiles: int) -> None:
        values = tuple(v.dtype if isinstance(v, Tensor) else v for v in arguments)
        launches.append(Launch(card, precision, width, name, values, tuple(tiles.items())))

    as_on_card: dict[str, Any] = {"_launch": record, "ops_for": lambda *_: fused_ops}
    as_on_card["_capability"] = lambda _: divmod(card.capability, 10)
    with patch.multiple(fused_ops, **as_on_card), computing(CPU, precision):
        yield launches


def launches_of(card: Card, precision: str) -> list[Launch]:
    """Return the different launches of training steps and of rankings."""
    different: dict[tuple[Any, ...], Launch] = {}
    for width, configs, by_bytes in product(WIDTHS, CONFIGS, ("true", "false")):
        table = {"hidden": width, "statistics": "false", "pool_by_bytes": by_bytes}
        recipe = load_recipe("leaderboard", [f"{LAYOUT}.{key}={v}" for key, v in table.items()])
        graph = make_layout_graph(sized_graph(GraphSize(60, 4, configs)))
        scaler = fit_node_scaler([graph.node_feat], scaling=recipe.features.scaling)
        # The configurable nodes alone, because the number of nodes changes no kernel.
        inputs = layout_inputs(graph, rule="config", scaler=scaler)
        network = CrossConfigSage(recipe.cross_config_sage)
        with recorded(card, precision, width) as launches:
            sample_loss(network, inputs, np.arange(configs) % len(inputs.first)).backward()
            network.score_all(inputs, chunk_configs=configs)
        for launch in launches:
            types = tuple(v for v in launch.arguments if isinstance(v, torch.dtype))
            different.setdefault((launch.name, types, launch.tiles), launch)
    return list(different.values())


def compile_kernel(launch: Launch) -> KernelResources:
    """Compile a kernel as its launch on the card does."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend
    from triton.runtime.jit import MockTensor, create_function_from_signature

    from models.layout import triton_kernels

    kernel = getattr(triton_kernels, launch.name)
    target, tiles = GPUTarget("cuda", launch.card.capability, 32), dict(launch.tiles)
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound_values, types, options = bind(*map(MockTensor.wrap_dtype, launch.arguments), **tiles)
    options, *source = kernel._pack_args(backend, tiles, bound_values, types, options)
    binary = triton.compile(ASTSource(kernel, *source), target=target, options=vars(options))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    registers, stack = (int(usage.partition(f"{key}:")[2].split()[0]) for key in ("REG", "STACK"))
    return KernelResources(launch, options.num_warps, registers, stack, binary.metadata.shared)


def rows_of(kernels: Sequence[KernelResources]) -> list[list[str]]:
    """Return a row for each kernel, card, type and width, with the largest of each resource."""
    groups: dict[tuple[Any, ...], list[KernelResources]] = {}
    for kernel in kernels:
        card, precision, width, name, *_ = kernel.launch
        groups.setdefault((name, card, precision, width), []).append(kernel)
    rows = []
    for (name, card, precision, width), group in groups.items():
        most = [max(getattr(k, key) for k in group) for key in ("registers", "stack", "shared")]
        share = min(card.occupancy(k.registers, k.shared, k.warps) for k in group)
        sizes = str(width), *(f"{number:,}" for number in most), f"{share:.0%}"
        rows.append([f"`{name}`", f"{card.name}, {precision}", *sizes])
    return rows


def main() -> None:
    """Compile all kernels, print their resources, and write the page."""
    work = []
    for card in CARDS:
        half = precision_on(GPU, "auto", version=divmod(card.capability, 10))
        for dtype in (half, torch.float32):
            work += launches_of(card, str(dtype).removeprefix("torch."))
    with Pool(N_PROCESSES) as pool:
        kernels = pool.map(compile_kernel, work, chunksize=8)
    kernels.sort(key=lambda k: (k.launch.name, k.launch.card[1], k.launch[1:3]))
    faults = [fault for kernel in kernels if (fault := kernel.fault())]
    print(*map("  ".join, rows_of(kernels)), *faults, sep="\n")  # noqa: T201
    if faults:
        raise PipelineError(f"make kernels: {len(faults)} kernels do not suit a card, see above")
    write_page(
        "kernels",
        PAGES,
        rows=rows_of(kernels),
        cards=CARDS,
        n=len(kernels),
        configs=", ".join(map(str, CONFIGS)),
        triton=version("triton"),
    )


if __name__ == "__main__":
    with errors_in_one_line():
        main()
