"""The fused kernels: as the plain operations by Triton's interpreter, and compiled for GPUs."""

import inspect
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.config.networks import CrossConfigSageConfig
from models.layout import cross_config_sage, fused_ops, plain_ops
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import Aggregation, LayoutInputs, SparseAggregation
from models.layout.plain_ops import Norm
from tests.support.triton_interpreter import accept_arrays_as_indices

pytest.importorskip("triton")
if torch.cuda.is_available():
    pytest.skip("compiled kernels are tested in test_compiled_kernels.py", allow_module_level=True)
accept_arrays_as_indices()

N_NODES, N_CONFIGS, WIDTH = 21, 6, 24  # no power of two
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
EDGES = torch.tensor([[3, 0], [3, 1], [2, 1], [4, 3], [9, 8], [20, 3], [7, 3]])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=list(TOLERANCE), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    found: torch.dtype = request.param
    return found


def assert_alike(found: object, expected: object, dtype: torch.dtype) -> None:
    given = (found, expected) if isinstance(found, tuple) else ((found,), (expected,))
    for ours, plain in zip(*given, strict=True):
        assert ours.dtype == plain.dtype
        apart = (ours.double() - plain.double()).norm() / plain.double().norm().clamp(min=1e-9)
        assert apart < TOLERANCE[dtype]


@pytest.mark.parametrize("which", ["every", "fixed", "of_varying"])
def test_an_aggregation_and_its_gradients(which: str, dtype: torch.dtype) -> None:
    neighbours = SparseAggregation(EDGES, N_NODES, varying=torch.tensor([3, 5, 9]))
    aggregation: Aggregation = getattr(neighbours, which)
    n_nodes, n_configs = (3, N_CONFIGS) if which == "of_varying" else (N_NODES, 2)
    x = torch.randn(n_nodes, n_configs, WIDTH).to(dtype)
    gain, shift = torch.rand(WIDTH) + 0.5, torch.randn(WIDTH)
    weights = (torch.randn(3, WIDTH, WIDTH) / 5).to(dtype)
    rows_differ = which == "of_varying"
    added = torch.randn(N_NODES, 1, WIDTH) if rows_differ else torch.randn(WIDTH)
    given = x, Norm(gain, shift, 1e-5), weights
    y = plain_ops.aggregate(*given, added.to(dtype), aggregation)
    assert_alike(fused_ops.aggregate(*given, added.to(dtype), aggregation), y, dtype)
    grad = torch.randn_like(y)
    expected = plain_ops.aggregate_backward(grad, *given, aggregation)
    assert_alike(fused_ops.aggregate_backward(grad, *given, aggregation), expected, dtype)


def attention_weights(dtype: torch.dtype, squeezed: int = 3) -> list[Tensor]:
    """W1 and b1, W2 and b2 of a channel attention, P and its bias."""
    shapes = (squeezed, WIDTH), (squeezed,), (WIDTH, squeezed), (WIDTH,), (WIDTH, 2 * WIDTH)
    return [(torch.randn(*shape) / 5).to(dtype) for shape in (*shapes, (WIDTH,))]


@pytest.mark.parametrize("n_configs", [N_CONFIGS, 1])
def test_attention_and_its_gradients(n_configs: int, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies matrices of bfloat16 as if they were integers")
    x, y, grad = (torch.randn(5, n_configs, WIDTH).to(dtype) for _ in range(3))
    sharpness, weights, found = torch.tensor(1.3), attention_weights(dtype), []
    for ops in (fused_ops, plain_ops):
        out, of_y = torch.empty_like(x), torch.empty_like(x)
        totals = [torch.zeros_like(weight, dtype=torch.float32) for weight in weights]
        ops.attend_and_add(x, y, sharpness, weights, out)
        given = grad.clone(), y, sharpness, weights, of_y, totals
        slope = ops.attend_and_add_backward(*given)
        found.append((out, of_y, *totals[:-1], slope))
    assert_alike(tuple(found[0][:-1]), tuple(found[1][:-1]), dtype)
    assert float((found[0][-1] - found[1][-1]).abs()) < TOLERANCE[dtype] * 10


@pytest.mark.parametrize("per_node", [True, False])
def test_sums_of_rows(per_node: bool, dtype: torch.dtype) -> None:
    x = torch.randn(5, 70, WIDTH).to(dtype)
    found, plain = (
        ops.sum_rows(x, torch.float32, per_node=per_node) for ops in (fused_ops, plain_ops)
    )
    assert_alike(found, plain, torch.float32)


def test_pooling_and_its_gradients(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_ops, "POOLED_NODES", 8)
    x, shares = torch.randn(N_NODES, N_CONFIGS, WIDTH).to(dtype), torch.rand(3, N_NODES)
    norm = Norm(torch.rand(WIDTH) + 0.5, torch.randn(WIDTH), 1e-5)
    sums, largest, *kept = plain_ops.pool(x, norm, shares, for_gradients=True)
    ours = fused_ops.pool(x, norm, shares, for_gradients=True)
    assert_alike(ours[:2], (sums, largest), dtype)
    grads = torch.randn_like(sums), torch.randn_like(largest)
    given = grads, x, norm.gain, shares, kept
    assert_alike(fused_ops.pool_backward(*given), plain_ops.pool_backward(*given), dtype)


def test_norms_of_equal_channels_are_the_shift() -> None:
    x, layer = torch.full((3, 2, WIDTH), 7.0), nn.LayerNorm(WIDTH)
    found, *_ = fused_ops._norm(x, layer.weight.detach(), layer.bias.detach(), 1e-5)
    torch.testing.assert_close(found, torch.zeros_like(found))


@pytest.mark.parametrize("cross_config", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_whole_network_is_the_same(
    cross_config: bool, inputs: LayoutInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CrossConfigSageConfig(hidden=16, cross_config=cross_config, pool_by_bytes=True)
    model, sample, found = CrossConfigSage(config), np.arange(7), []
    weights = torch.randn(7)
    for made in (plain_ops, fused_ops):
        monkeypatch.setattr(cross_config_sage, "ops_for", lambda _, *, fused, made=made: made)
        model.zero_grad()
        scores = model(inputs, sample)
        (scores * weights).sum().backward()
        ranked = (torch.from_numpy(model.score_all(inputs, chunk_configs=n)) for n in (3, 1000))
        found.append((scores.detach(), *ranked, *(p.grad for p in model.parameters())))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


COMPILE = """
import inspect, json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from models.layout import triton_kernels
for name, types, sizes, capability, warps in json.load(sys.stdin):
    kernel = getattr(triton_kernels, name)
    names = list(inspect.signature(kernel.fn).parameters)
    constants = {(names.index(key),): value for key, value in sizes.items()}
    source = ASTSource(kernel, signature=types, constexprs=constants)
    triton.compile(source, GPUTarget("cuda", capability, 32), options={"num_warps": warps})
    print(name, capability)
"""


def _type_of(value: object) -> str:
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64"}
    names[torch.bfloat16] = "bf16"
    if isinstance(value, Tensor):
        return f"*{names[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capability", "dtype"),
    [(75, torch.float16), (80, torch.bfloat16), (90, torch.bfloat16), (90, torch.float32)],
    ids=str,
)
def test_each_kernel_compiles_for_a_gpu(
    capability: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.layout import triton_kernels

    seen = {}

    def launch(name: str, _: object, *given: object, **sizes: int) -> None:
        names = inspect.signature(getattr(triton_kernels, name).fn).parameters
        warps = sizes.pop("num_warps", 4)
        types = dict(zip(names, map(_type_of, given), strict=False))
        seen[name] = types | dict.fromkeys(sizes, "constexpr"), sizes, warps

    monkeypatch.setattr(fused_ops, "_launch", launch)
    neighbours = SparseAggregation(EDGES, N_NODES, varying=torch.tensor([3, 5, 9]))
    x, weights = torch.randn(N_NODES, 128, 128).to(dtype), torch.randn(3, 128, 128).to(dtype)
    gain, bias, shares = torch.rand(128), torch.rand(128).to(dtype), torch.rand(3, N_NODES)
    norm = Norm(gain, gain, 1e-5)
    fused_ops.aggregate(x, norm, weights, bias, neighbours.every)
    fused_ops.aggregate_backward(x, x, norm, weights, neighbours.every)
    sums, largest, place, *kept = fused_ops.pool(x, norm, shares, for_gradients=True)
    fused_ops.pool_backward((sums, largest), x, gain, shares, (place, *kept))
    shapes = (16, 128), (16,), (128, 16), (128,), (128, 256), (128,)
    given = torch.tensor(1.0), [torch.randn(*shape).to(dtype) for shape in shapes]
    totals = [torch.zeros(shape) for shape in shapes]
    fused_ops.attend_and_add(x, x, *given, torch.empty_like(x))
    fused_ops.attend_and_add_backward(x, x, *given, torch.empty_like(x), totals)
    fused_ops.sum_rows(x, torch.float32, per_node=False)
    n_kernels = 10 - (dtype == torch.float32)  # float32 projects by torch's own product
    assert len(seen) == n_kernels
    asked = [[name, *facts[:2], capability, facts[2]] for name, facts in seen.items()]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == n_kernels
