"""The fused kernels against float64: compiled on a CUDA GPU, else by Triton's interpreter."""

from collections.abc import Callable
from functools import cache
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from models.config.networks import CrossConfigSageConfig
from models.layout import fused_ops, plain_ops
from models.layout.cross_config_sage import CrossConfigSage
from models.layout.inputs import LayoutInputs, SparseAggregation
from models.layout.network import sample_loss
from models.layout.plain_ops import Norm
from tests.support.triton_interpreter import accept_arrays_as_indices

OutOfResources = pytest.importorskip("triton.runtime.errors").OutOfResources
HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
if HAS_GPU:
    pytestmark = pytest.mark.gpu
else:
    accept_arrays_as_indices()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="torch finds no CUDA GPU")
needs_cpu = pytest.mark.skipif(HAS_GPU, reason="a GPU's kernels compute on the GPU alone")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 8e-3}
SHAPES, AGGREGATED = [(1, 1, 16), (21, 6, 24)], (13, 5, 24)
if HAS_GPU:
    AGGREGATED = 33, 17, 40
    SHAPES += [(7, 129, 130), (3, 1000, 64), (257, 128, 128), (2, 2, 256)]
EDGES = torch.tensor([[3, 0], [3, 1], [2, 1], [4, 3], [9, 8], [20, 3], [7, 3]])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


products_of_both_kinds = pytest.mark.parametrize("products", ["in the kernel", "by cuBLAS"])


def choose_products(products: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if products == "by cuBLAS":
        monkeypatch.setattr(fused_ops, "_capability", lambda _: (7, 5))
    elif dtype == torch.float32:
        pytest.skip("products of float32 are always computed by cuBLAS")
    elif dtype == torch.bfloat16 and not HAS_GPU:
        pytest.skip("Triton's interpreter multiplies matrices of bfloat16 as if they were integers")


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def assert_close(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Compare by the relative error of the whole tensor; NaN never passes."""
    error = (found.double() - exact.double()).norm() / exact.double().norm().clamp(min=1e-9)
    assert float(error) < TOLERANCE[dtype]


def assert_all_close(found: object, exact: object, dtype: torch.dtype) -> None:
    for ours, double in zip(found, exact, strict=True):  # type: ignore[call-overload]
        assert_close(ours, double, dtype)


@every_dtype
@pytest.mark.parametrize("which", ["every", "fixed", "of_varying"])
@pytest.mark.parametrize("edges", ["none", "star", "random"])
@products_of_both_kinds
def test_aggregation_equals_float64(
    products: str, which: str, edges: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_products(products, dtype, monkeypatch)
    n, c, h = AGGREGATED
    pairs = torch.zeros(0, 2, dtype=torch.int64)
    if edges == "star":
        pairs = torch.stack([torch.arange(1, n), torch.zeros(n - 1, dtype=torch.int64)], 1)
    if edges == "random":
        user = np.random.default_rng(0).integers(1, n, 60)
        operand = np.random.default_rng(1).integers(0, user)
        pairs = torch.from_numpy(np.unique(np.stack([user, operand], 1), axis=0))
    neighbours = SparseAggregation(pairs, n, varying=torch.arange(0, n, 3))
    joint = getattr(neighbours, which).joint.matrix.to_dense().double().to(DEVICE)
    aggregation = getattr(neighbours.to(DEVICE), which)
    x = draw(joint.shape[1] // 3, c, h, dtype=dtype)
    gain, shift = torch.rand(h, device=DEVICE) + 0.5, draw(h)
    weights = draw(3, h, h, dtype=dtype) / h**0.5
    added = draw(n, 1, h, dtype=dtype) if which == "of_varying" else draw(h, dtype=dtype)
    leaves = [t.double().requires_grad_() for t in (x, gain, shift, weights)]
    normed = torch.layer_norm(leaves[0], (h,), leaves[1], leaves[2], 1e-5)
    projected = torch.stack([normed @ leaves[3][part].T for part in range(3)]).flatten(0, 1)
    exact = added.double() + torch.einsum("rm,mch->rch", joint, projected)
    norm = Norm(gain, shift, 1e-5)
    assert_close(fused_ops.aggregate(x, norm, weights, added, aggregation), exact, dtype)
    grad = draw(*exact.shape, dtype=dtype)
    gradients = fused_ops.aggregate_backward(grad, x, norm, weights, aggregation)
    assert_all_close(gradients, torch.autograd.grad(exact, leaves, grad.double()), dtype)


@every_dtype
@every_shape
@products_of_both_kinds
def test_attention_equals_float64(
    products: str,
    shape: tuple[int, int, int],
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_products(products, dtype, monkeypatch)
    h = shape[-1]
    a = max(1, h // 8)
    shapes = (a, h), (a,), (h, a), (h,), (h, 2 * h), (h,)
    weights = [draw(*size, dtype=dtype) / h**0.5 for size in shapes]
    x, y, grad = (draw(*shape, dtype=dtype) for _ in range(3))
    sharpness = torch.tensor(1.3, device=DEVICE)
    fused = attended(fused_ops, x, y, grad, sharpness, *weights)
    doubles = [tensor.double() for tensor in (x, y, grad, sharpness, *weights)]
    exact = attended(plain_ops, *doubles)
    assert_all_close(fused, exact, dtype)


def attended(
    ops: ModuleType, x: Tensor, y: Tensor, grad: Tensor, sharpness: Tensor, *weights: Tensor
) -> list[Tensor]:
    """Return the result of a block's second half, and all gradients but the last bias's."""
    out, of_y = torch.empty_like(x), torch.empty_like(x)
    sums = [torch.zeros_like(weight, dtype=sharpness.dtype) for weight in weights[:5]]
    ops.attend_and_add(x, y, sharpness, weights, out)
    ops.attend_and_add_backward(grad.clone(), y, sharpness, weights, of_y, sums)
    return [out, of_y, *sums[:5]]


@every_dtype
@every_shape
def test_pooling_equals_float64(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    n, _, h = shape
    x, shares = draw(*shape, dtype=dtype), torch.rand(3, n, device=DEVICE)
    gain, shift = torch.rand(h, device=DEVICE) + 0.5, draw(h)
    leaves = [t.double().requires_grad_() for t in (x, gain, shift)]
    normed = torch.layer_norm(leaves[0], (h,), leaves[1], leaves[2], 1e-5)
    sums = torch.einsum("pn,nch->pch", shares.double(), normed)
    found = fused_ops.pool(x, Norm(gain, shift, 1e-5), shares, for_gradients=True)
    picked = normed.gather(0, found[2][None])[0]
    assert_all_close(found[:2], (sums, normed.amax(0)), dtype)
    assert_close(picked, normed.amax(0), dtype)
    grads = draw(*sums.shape), draw(*picked.shape)
    gradients = fused_ops.pool_backward(grads, x, gain, shares, found[2:])
    exact = torch.autograd.grad([sums, picked], leaves, [grad.double() for grad in grads])
    assert_all_close(gradients, exact, dtype)


@needs_gpu
def test_weight_gradients_in_float16_do_not_overflow() -> None:
    grad, given = torch.full((2, 300_000, 8), 1.0, device=DEVICE, dtype=torch.float16)
    into = torch.zeros(8, 8, device=DEVICE)
    fused_ops.add_weight_gradient(into, grad, given)
    assert float((into - 300_000).abs().max()) == 0


@needs_gpu
def test_tensors_of_more_than_2_to_the_31_values_keep_their_last_rows() -> None:
    if torch.cuda.mem_get_info()[0] < 30 << 30:
        pytest.skip("needs 30 GiB of free GPU memory")
    n, c, h = 17_000, 1_000, 128
    x = torch.empty(n, c, h, device=DEVICE, dtype=torch.bfloat16)
    for part in x.split(1000):
        part.normal_()
    gain, shift = torch.ones(h, device=DEVICE), torch.zeros(h, device=DEVICE)
    exact = torch.layer_norm(x[-2:].double(), (h,))
    normed = fused_ops._norm(x, gain, shift, 1e-5)[0]
    assert_close(normed[-2:], exact, torch.bfloat16)
    del normed
    chain = torch.stack([torch.arange(1, n), torch.arange(n - 1)], 1)
    joint = SparseAggregation(chain, n, varying=torch.arange(2)).to(x.device).every.joint
    nothing = torch.zeros(h, device=DEVICE, dtype=x.dtype)
    shared = fused_ops._product(joint, x[:, :, None], nothing, transposed=True)
    assert torch.equal(shared[-1, :, 0], x[-1])
    del shared
    shares = torch.full((1, n), 1 / n, device=DEVICE)
    found = fused_ops.pool(x, Norm(gain, shift, 1e-5), shares, for_gradients=True)
    column = torch.layer_norm(x[:, -1].double(), (h,))
    assert_close(found[1][-1], column.amax(0), torch.bfloat16)


@needs_gpu
def test_same_input_gives_the_same_bytes() -> None:
    x, y, grad = (draw(700, 128, 128, dtype=torch.bfloat16) for _ in range(3))
    shapes = (16, 128), (16,), (128, 16), (128,), (128, 256), (128,)
    weights = [draw(*size, dtype=x.dtype) / 11 for size in shapes]
    sharpness = torch.tensor(1.0, device=DEVICE)
    first, *later = (attended(fused_ops, x, y, grad, sharpness, *weights) for _ in range(3))
    assert all(all(map(torch.equal, first, again)) for again in later)


@needs_cpu
def test_a_whole_network_is_the_same(inputs: LayoutInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    config = CrossConfigSageConfig(hidden=16, pool_by_bytes=True)
    model, sample, results = CrossConfigSage(config), np.arange(7), []
    weights = torch.randn(7)
    for ops in (plain_ops, fused_ops):
        monkeypatch.setattr(fused_ops, "ops_for", lambda *_, ops=ops: ops)
        model.zero_grad()
        scores = model(inputs, sample)
        (scores * weights).sum().backward()
        ranked = (torch.from_numpy(model.score_all(inputs, chunk_configs=n)) for n in (3, 1000))
        results.append((scores.detach(), *ranked, *(p.grad for p in model.parameters())))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-4)


@needs_cpu
def test_the_check_of_a_card_runs_each_variant_of_a_training(
    inputs: LayoutInputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, launched = set(), set()

    def variants(found: set[object]) -> Callable[..., None]:
        def launch(name: str, _: object, *arguments: object, **tiles: int) -> None:
            types = tuple(v.dtype for v in arguments if isinstance(v, Tensor))
            found.add((name, types, tuple(tiles.items())))

        return launch

    config = CrossConfigSageConfig(hidden=16, pool_by_bytes=True)
    monkeypatch.setattr(fused_ops, "_launch", variants(checked))
    fused_ops._run_each_kernel(torch.zeros(1, 16, 16), bottleneck=2)
    monkeypatch.setattr(fused_ops, "_launch", variants(launched))
    monkeypatch.setattr(fused_ops, "ops_for", lambda *_: fused_ops)
    for by_bytes in (True, False):
        model = CrossConfigSage(config.model_copy(update={"pool_by_bytes": by_bytes}))
        sample_loss(model, inputs, np.arange(9)).backward()
    assert {name for name, *_ in launched} >= {"attend_backward", "pool", "norm"}
    assert launched <= checked


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter run fused kernels on the CPU, as on a new card."""
    monkeypatch.setattr(fused_ops, "_has_triton", lambda _: True)
    monkeypatch.setattr(fused_ops, "_failing_gpus", set())
    monkeypatch.setattr(fused_ops, "_fault", cache(fused_ops._fault.__wrapped__))


def trained(inputs: LayoutInputs, *, fused: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = CrossConfigSage(CrossConfigSageConfig(hidden=16, fused=fused))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimiser.zero_grad()
        sample_loss(model, inputs, np.arange(step, step + 7)).backward()
        optimiser.step()
    return model.state_dict()


NO_COMPILER = RuntimeError("Failed to find C compiler. Please specify via CC\nenvironment variable")
SMALL_CARD = OutOfResources(81_920, 48 << 10, "shared memory")


@needs_cpu
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    ("failing", "error"),
    [("norm", SMALL_CARD), ("attend_backward", SMALL_CARD), ("norm", NO_COMPILER)],
)
def test_a_kernel_that_fails_is_replaced_with_one_line(
    failing: str,
    error: Exception,
    inputs: LayoutInputs,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    launch = fused_ops._launch

    def limited(name: str, grid: tuple[int, ...], *arguments: object, **tiles: int) -> None:
        if name == failing:
            raise error
        launch(name, grid, *arguments, **tiles)

    monkeypatch.setattr(fused_ops, "_launch", limited)
    weights = trained(inputs, fused=True)
    (line,) = [record.getMessage() for record in caplog.records]
    assert " ".join(f"{type(error).__name__}: {error}".split()) in line
    plain_weights = trained(inputs, fused=False)
    assert all(torch.equal(weights[name], tensor) for name, tensor in plain_weights.items())


@needs_cpu
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_card_whose_memory_is_full_keeps_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(fused_ops, "_launch", full)
    with pytest.raises(torch.OutOfMemoryError):
        fused_ops.ops_for(torch.zeros(2, 5, 16), CrossConfigSageConfig(hidden=16))
    assert not fused_ops._failing_gpus
