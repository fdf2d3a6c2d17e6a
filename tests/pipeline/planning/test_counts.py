"""What is counted on the device that is none, by hand, and of every network; what it refuses."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from data.graphs.graph import distinct_configs
from models.config.recipe import load_recipe
from models.registry import MODELS
from pipeline.planning.counts import FAKE_GPU, Counts, counted
from pipeline.planning.made_up import Size, count_ranking, count_step, layout_graph, make_case

FLOAT, HALF = 4, 2
LARGE = Size(nodes=5_000, edges=8_500, configurable=1_400, configs=300)
KERNEL = Size(nodes=40, edges=66, configurable=0, configs=500)
NETWORKS = {
    "cross_config_sage": LARGE,
    "segment_sage": LARGE,
    "tgraph": LARGE,
    "baseline_gcn": LARGE,
    "late_fusion_sage": KERNEL,
    "early_fusion_sage": KERNEL,
}


def counts_of(work: Callable[[], object]) -> Counts:
    """Count what a piece of work does on the device, without what makes it ready: its first run."""
    with counted() as counts:
        work()
        before = copy.deepcopy(counts)
        work()
        return counts.since(before)


def there(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=FAKE_GPU)


def test_every_network_is_counted() -> None:
    known = {name for name, entry in MODELS.items() if entry.network}
    assert NETWORKS.keys() == known


def test_a_matrix_product_by_hand() -> None:
    found = counts_of(lambda: there(3, 5) @ there(5, 7))
    assert (found.kernels, found.flops, found.elements) == (1, 2 * 3 * 5 * 7, 0)
    assert found.bytes == FLOAT * (3 * 5 + 5 * 7 + 3 * 7)
    halves = counts_of(lambda: there(3, 5, dtype=torch.float16) @ there(5, 7, dtype=torch.float16))
    assert (halves.half_flops, halves.half_share) == (halves.flops, 1)
    assert halves.bytes == found.bytes / 2


@pytest.mark.parametrize(
    ("work", "n_bytes"),
    [
        (lambda x, i: x.add_(x[:1]), FLOAT * (2 * 80 + 8)),
        (lambda x, i: x.mul(x), FLOAT * 2 * 80),  # the same one is read once
        (lambda x, i: x.fill_(1), FLOAT * 80),
        (lambda x, i: x + there(1, 8).expand(10, 8).view(10, 8)[:, None].flatten(1), FLOAT * 168),
        (lambda x, i: x[i], FLOAT * 2 * 16 + 8 * 2),  # two rows, and where they are
        (lambda x, i: nn.functional.embedding(i, x), FLOAT * 2 * 16 + 8 * 2),
        (lambda x, i: x.index_add_(0, i, x[:2]), FLOAT * 3 * 16 + 8 * 2),
        (lambda x, i: torch.mm(x, x.T, out=there(10, 10)), FLOAT * (80 + 100)),
    ],
)
def test_bytes_by_hand(work: Callable[..., object], n_bytes: int) -> None:
    with counted() as counts:
        x, index = there(10, 8), torch.zeros(2, dtype=torch.long, device=FAKE_GPU)
        before = copy.deepcopy(counts)
        work(x, index)
    assert counts.since(before).bytes == n_bytes


def test_a_sparse_product_by_hand() -> None:
    matrix = torch.eye(6).to_sparse_csr()

    def work() -> None:
        moved = matrix.to(FAKE_GPU)
        there(6, 10).addmm_(moved, there(6, 10))

    found = counts_of(work)
    assert (found.kernels, found.flops) == (1, 2 * 6 * 10)
    # Six values and columns, seven rows' starts as int32, and the dense ones.
    assert found.bytes == FLOAT * (6 + 6 + 6 + 3 * 60)

    def made_there() -> None:
        starts, columns = torch.arange(3).to(FAKE_GPU), torch.tensor([1, 0]).to(FAKE_GPU)
        matrix = torch.sparse_csr_tensor(
            starts, columns, there(2) + 1, (2, 2), check_invariants=False
        )
        assert (matrix @ there(2, 5)).shape == (2, 5)

    assert counts_of(made_there).flops == 2 * 2 * 5


def test_waits_are_counted_by_what_they_wait_for() -> None:
    mask = torch.tensor([True, False, True])

    def work() -> None:
        x, chosen = there(3, 2), mask.to(FAKE_GPU)  # an upload that waits
        assert x[chosen].shape == (2, 2)
        assert x.sum().item() == 1
        assert x.cpu().tolist() == [[0, 0]] * 3
        mask.pin_memory().to(FAKE_GPU, non_blocking=True)

    waits = counts_of(work).waits
    assert waits == {"from the host": 1, "a mask": 1, "a value": 1, "to the host": 1}


def test_a_training_step_runs_without_memory() -> None:
    layer = nn.Linear(1 << 12, 1 << 12)
    with counted() as counts:
        layer.to(FAKE_GPU)
        optimiser = torch.optim.AdamW(layer.parameters())
        layer(there(1 << 20, 1 << 12)).square().mean().backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimiser.step()
        assert layer.weight.grad is not None and layer.weight.grad.is_cuda
    assert counts.peak_bytes > FLOAT * 3 << 32  # 48 GiB
    assert counts.flops == 2 * 2 * 2**44  # no gradient of what goes in


def test_the_peak_is_of_what_is_held_at_once() -> None:
    with counted() as counts:
        x = there(1000)
        for _ in range(5):
            x = x.view(10, 100).flatten() + 1
        assert counts.peak_bytes == FLOAT * 2000
        (x, x + 1, x + 2)
    assert counts.peak_bytes == FLOAT * 3000


@torch.library.custom_op("tests_of_counts::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Stand for a kernel of one's own."""
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operation_of_ones_own_is_one_kernel() -> None:
    found = counts_of(lambda: twice(there(4, 6, dtype=torch.bfloat16)))
    assert (found.kernels, found.bytes, found.half_share) == (1, HALF * 2 * 24, 1)


def test_it_refuses_what_a_gpu_would() -> None:
    here = torch.ones(4, 3)
    with counted():
        layer = nn.Linear(3, 2).to(FAKE_GPU)
        assert (there(4, 3) + torch.ones(())).is_cuda  # a number of the host may stand there
        for mixed in (
            lambda: layer(here),
            lambda: there(4, 3) + here,
            lambda: there(4, 3)[torch.tensor([0])],
            lambda: here.index_add_(0, torch.arange(4), there(4, 3)),
        ):
            with pytest.raises(RuntimeError, match="on the CPU, others are not"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            there(1).numpy()
        for types in ((torch.int64, torch.int64), (torch.float16, torch.float32)):
            with pytest.raises(RuntimeError, match="not on CUDA for"):
                there(2, 2, dtype=types[0]) @ there(2, 2, dtype=types[1])


def test_autocast_holds_as_on_a_gpu() -> None:
    with counted() as counts:
        layer = nn.Linear(8, 8).to(FAKE_GPU)
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.float16)
        try:
            y = layer(there(4, 8))
            weights = torch.softmax(y, dim=1)
        finally:
            torch.set_autocast_enabled("cuda", False)
        weights.sum().backward()
    assert (y.dtype, weights.dtype) == (torch.float16, torch.float32)
    assert layer.weight.grad is not None and layer.weight.grad.dtype == torch.float32
    assert counts.half_flops == counts.flops == 2 * 2 * 4 * 8 * 8


def test_a_graph_is_of_the_size_and_repeats_nothing() -> None:
    graph = layout_graph(LARGE, np.random.default_rng(0))
    assert (graph.n_nodes, graph.n_configs, len(graph.node_config_ids)) == (5_000, 300, 1_400)
    assert len(distinct_configs(graph)[0]) == 300
    assert 0.9 * LARGE.edges < len(graph.edge_index) <= LARGE.edges


@pytest.mark.parametrize(("name", "size"), NETWORKS.items())
def test_a_step_and_a_ranking_stay_on_the_device(name: str, size: Size) -> None:
    case = make_case(load_recipe("leaderboard", [f"{name}.hidden=32"]), name, size)
    step, ranking = count_step(case), count_ranking(case)
    for found in (step, ranking):
        assert found.kernels > 20
        assert found.flops > 0
        assert found.peak_bytes > 0


def test_counts_repeat_and_grow_with_nodes() -> None:
    recipe = load_recipe("leaderboard", ["cross_config_sage.hidden=32"])
    sizes = (LARGE, LARGE, Size(10_000, 17_000, 2_800, 300))
    first, again, double = (count_step(make_case(recipe, "cross_config_sage", s)) for s in sizes)
    assert first == again
    assert double.bytes == pytest.approx(2 * first.bytes, rel=0.02)
    assert double.flops == pytest.approx(2 * first.flops, rel=0.02)
