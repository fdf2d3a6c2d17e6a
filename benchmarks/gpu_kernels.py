"""Time each fused kernel on the tensors of a step, next to `torch.compile` of plain operations.

A kernel is worth its code if the compiled operations take at least 1.15 times as long.

Shapes: n nodes, c configs, h channels, a squeezed channels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu_measures import forward_of, gradient_of, milliseconds, moved_bytes, speed
from models.layout import fused_ops
from models.layout.inputs import SparseAggregation
from models.layout.plain_ops import Norm

N_NODES, N_CONFIGS, HIDDEN = 5_000, 128, 128
REDUCTION = 8


class FusedKernel(NamedTuple):
    """A call of a fused kernel, and plain operations with the same result.

    Attributes:
        plain: None for sparse products, because `torch.compile` cannot compile them.
        inputs: Arguments of `plain`.
        grads: Gradients of the results of `plain`, if the kernel is of a backward pass.
    """

    name: str
    call: Callable[[], object]
    plain: Callable[..., Any] | None = None
    inputs: tuple[Tensor, ...] = ()
    grads: tuple[Tensor, ...] = ()


def norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.layer_norm(x.float(), gain.shape, gain, shift).to(x.dtype)


def pool(x: Tensor, gain: Tensor, shift: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    normed = F.layer_norm(x.float(), gain.shape, gain, shift)
    return torch.einsum("pn,nch->pch", shares, normed), normed.amax(0)


def squeeze(y: Tensor, w1: Tensor, b1: Tensor) -> Tensor:
    return torch.relu(F.linear(F.gelu(y), w1, b1))


def gates(y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor]:
    return F.gelu(y), F.linear(squeeze(y, w1, b1), w2, b2)


def attend(y: Tensor, squeezed: Tensor, w2: Tensor, b2: Tensor, sharpness: Tensor) -> Tensor:
    messages = F.gelu(y.float()) * torch.sigmoid(F.linear(squeezed, w2, b2).float())
    weights = torch.softmax(messages * sharpness, 1) * y.shape[1]
    return torch.cat([messages, messages * weights], -1).to(y.dtype)


def project(x: Tensor, joined: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x + F.linear(joined, weight, bias)


def sum_rows(x: Tensor) -> Tensor:
    return x.sum((0, 1), dtype=torch.float32)


def norm_kernels(x: Tensor, grad: Tensor) -> list[FusedKernel]:
    """Return the kernels of layer norms and pooling. `x` and `grad` are (n, c, h)."""
    gain, shift = (torch.ones(x.shape[-1], device=x.device) for _ in range(2))
    shares, settings = torch.rand(3, len(x), device=x.device), Norm(gain, shift, 1e-5)
    _, mean, rstd = fused_ops._norm(x, *settings)
    pool_call = partial(fused_ops.pool, x, settings, shares, for_gradients=True)
    pooled = pool_call()
    of_norm, of_pool = (x, gain, shift), (x, gain, shift, shares)
    norm_back = partial(fused_ops._norm_backward, grad, x, mean, rstd, gain)
    pool_back = partial(fused_ops.pool_backward, pooled[:2], x, gain, shares, pooled[2:])
    return [
        FusedKernel("norm", partial(fused_ops._norm, x, *settings), norm, of_norm),
        FusedKernel("norm_backward", norm_back, norm, of_norm, (grad,)),
        FusedKernel("pool", pool_call, pool, of_pool),
        FusedKernel("pool_backward", pool_back, pool, of_pool, pooled[:2]),
    ]


def attention_kernels(x: Tensor, y: Tensor, draw: Callable[..., Tensor]) -> list[FusedKernel]:
    """Return the kernels of the attention over channels and configs. `x` and `y` are (n, c, h)."""
    h = x.shape[-1]
    a = h // REDUCTION
    w1, b1, w2, b2 = (draw(*shape) / h**0.5 for shape in ((a, h), (a,), (h, a), (h,)))
    projection, bias = draw(h, 2 * h) / h**0.5, draw(h) / h**0.5
    sharpness, out = torch.ones((), device=x.device), torch.empty_like(x)
    squeezed = fused_ops._squeeze(y, w1, b1)
    attend_call = partial(fused_ops._attend, y, squeezed, (w2, b2), sharpness)
    joined = attend_call()
    attend_back = partial(fused_ops._attend_backward, joined, y, squeezed, (w2, b2), sharpness)
    of_inner, of_gate, _ = attend_back()
    gate_back = partial(fused_ops._gate_backward, of_inner, of_gate, y, squeezed, w1, w2, out)
    of_attend, of_gates = (y, squeezed, w2, b2, sharpness), (y, w1, b1, w2, b2)
    kernels = [
        FusedKernel("squeeze", partial(fused_ops._squeeze, y, w1, b1), squeeze, (y, w1, b1)),
        FusedKernel("attend", attend_call, attend, of_attend),
        FusedKernel("attend_backward", attend_back, attend, of_attend, (joined,)),
        FusedKernel("gate_backward", gate_back, gates, of_gates, (of_inner, of_gate)),
    ]
    if x.dtype != torch.float32:
        # float32 uses the matrix product of PyTorch.
        of_project = x, joined, projection, bias
        call = partial(fused_ops._project, *of_project, out)
        kernels.append(FusedKernel("project", call, project, of_project))
    return kernels


def sum_kernels(x: Tensor, draw: Callable[..., Tensor]) -> list[FusedKernel]:
    """Return the kernels of sums over neighbours and over rows. `x` is (n, c, h)."""
    n, c, h = x.shape
    varying = torch.arange(0, n, 4)
    joint = SparseAggregation(random_edges(n), n, varying=varying).to(x.device).every.joint
    projected, bias = draw(n, c, 3, h), draw(h)
    product = partial(fused_ops._product, joint, projected, bias)
    turned = partial(fused_ops._product, joint, x[:, :, None], bias, transposed=True)
    total = partial(fused_ops.sum_rows, x, torch.float32, per_node=False)
    return [
        FusedKernel("sparse_rows", product),
        FusedKernel("sparse_rows, transposed", turned),
        FusedKernel("sum_rows", total, sum_rows, (x,)),
    ]


def random_edges(n_nodes: int) -> Tensor:
    rng = np.random.default_rng(0)
    user = rng.integers(1, n_nodes, int(1.7 * n_nodes))
    return torch.from_numpy(np.unique(np.stack([user, rng.integers(0, user)], 1), axis=0))


def kernel_rows(device: torch.device) -> list[list[str]]:
    """Return a row of the page for each kernel. On a CPU, the tensors are tiny."""
    is_cpu = device.type == "cpu"
    shape = (20, 16, 16) if is_cpu else (N_NODES, N_CONFIGS, HIDDEN)
    dtype = torch.float32 if is_cpu else torch.bfloat16

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(dtype)

    x, y, grad = (draw(*shape) for _ in range(3))
    kernels = [*norm_kernels(x, grad), *sum_kernels(x, draw), *attention_kernels(x, y, draw)]
    return [kernel_row(kernel, device) for kernel in kernels]


def kernel_row(kernel: FusedKernel, device: torch.device) -> list[str]:
    with moved_bytes() as moved:
        kernel.call()
    ms = milliseconds(kernel.call, device)
    row = [kernel.name, f"{ms:.3f}", *speed(moved.total, ms, device)]
    if kernel.plain is None:
        return [*row, "", ""]
    if kernel.grads:
        compiled = gradient_of(kernel.plain, kernel.inputs, kernel.grads)
    else:
        compiled = forward_of(kernel.plain, kernel.inputs)
    compiled_ms = milliseconds(compiled, device)
    return [*row, f"{compiled_ms:.3f}", f"{compiled_ms / ms:.2f}"]
