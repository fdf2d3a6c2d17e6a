"""Whether torch.compile pays for a block's elementwise part, which it could fuse.

`python -m benchmarks.speed.compiled_block` prints the section.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from benchmarks.speed.layout_model import in_turn
from models.layout.layers import SageBlock
from models.layout.node_slices import SLICE_BYTES
from models.training.loop import prepare_torch

N_CONFIGS, WIDTH, ROUNDS = 64, 64, 20
AGREES_WITHIN = 1e-5


def report(n_configs: int = N_CONFIGS, *, rounds: int = ROUNDS) -> list[str]:
    """Measure; return the section of RESULTS.md."""
    prepare_torch(seed=0, threads=1)
    block = SageBlock(WIDTH, channel_reduction=8, cross_config=True)
    n_nodes = SLICE_BYTES // (n_configs * WIDTH * 4)
    y = torch.randn(n_nodes, n_configs, WIDTH, requires_grad=True)
    lines = [
        "## torch.compile",
        "",
        "What a block of the layout GNN does to a slice of nodes between its two matrix products:",
        "gelu, channel attention, attention across configs. As it is, and compiled.",
        "",
    ]
    compiled = torch.compile(block.attend)
    start = time.perf_counter()
    try:
        difference = _difference(block.attend, compiled, y)
    except Exception as error:
        return [*lines, f"Not measured: torch.compile fails here ({type(error).__name__})."]
    compile_s = time.perf_counter() - start
    work = {"compiled": compiled, "plain": block.attend}
    forward = in_turn(lambda name: _forward(work[name], y), rounds, names=list(work))
    step = in_turn(lambda name: _step(work[name], y), rounds, names=list(work))
    lines += [
        "| n, c, width | ms as it is: forward | forward+backward | times faster compiled: forward "
        "| forward+backward | s to compile | differ by |",
        "|---|---:|---:|---:|---:|---:|---:|",
        f"| {n_nodes}, {n_configs}, {WIDTH} "
        f"| {median(forward['plain']) * 1e3:.1f} | {median(step['plain']) * 1e3:.1f} "
        f"| {median(forward['plain']) / median(forward['compiled']):.2f} "
        f"| {median(step['plain']) / median(step['compiled']):.2f} "
        f"| {compile_s:.0f} | {difference:.0e} |",
        "",
        "The project compiles nothing: a factor near 1 on a part of each step does not repay the",
        "seconds to compile, nor the compiler that a user would need.",
    ]
    assert difference < AGREES_WITHIN
    return lines


@torch.inference_mode()
def _forward(function: Callable[..., tuple[Tensor, ...]], y: Tensor) -> None:
    function(y)


def _step(function: Callable[..., tuple[Tensor, ...]], y: Tensor) -> Tensor:
    joined = function(y)
    (grad,) = torch.autograd.grad(joined, [y], [torch.ones_like(z) for z in joined])
    return grad


def _difference(
    plain: Callable[..., tuple[Tensor, ...]], compiled: Callable[..., tuple[Tensor, ...]], y: Tensor
) -> float:
    """Compile for both uses; return how far gradients are apart."""
    _forward(compiled, y)
    return float((_step(plain, y) - _step(compiled, y)).abs().max())


if __name__ == "__main__":
    print("\n".join(report()))  # noqa: T201
