"""What the embedded sample holds: which kernels and programs, in which splits and order."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import UsageError
from data.collect.job import Job
from data.collect.layout_subject import LayoutSource
from data.collect.request import LAYOUT_SEARCHES
from data.collect.tiles.catalogue import catalogue as tile_catalogue
from data.collect.tiles.subject import TileSource
from data.tree import collection_named

# Drawn at random from the families, before any was measured. Many are held out: how far two rankers
# are apart shows on some hundred kernels only.
VALID_KERNELS = (
    "batched_matmul",
    "depthwise_relu",
    "residual_rmsnorm",
    "mean_pool",
    "adam_update",
    "add_relu",
    "channel_max",
    "conv1x7_relu",
    "conv2x2_relu",
    "cross_entropy",
    "dense_3d_silu",
    "depth_to_space",
    "finite_differences",
    "gated_projection",
    "l2_normalize",
    "linear_attention",
    "log_softmax",
    "masked_softmax",
    "pairwise_sums",
    "split_heads",
    "squared_error",
    "swap_heads",
)
TEST_KERNELS = (
    "attention_values",
    "conv5x5_relu",
    "logsumexp",
    "distances",
    "matvec",
    "merge_heads",
    "row_variance",
    "tanh_scale",
)
TILE_SHARE = 0.35  # kernels are cheap: all are done when about a third of the programs is


@dataclass(frozen=True)
class SamplePlan:
    """How much to measure.

    Attributes:
        layout_configs: configs per program and search.
        tile_configs: most tiles per kernel.
        kernels: kernels to measure; empty for the whole catalogue.
        programs: programs to measure; empty for the whole catalogue.
        n_rounds: interleaved rounds, after the search's own.
        timeout_s: after which a config counts as failed.
    """

    layout_configs: int = 120
    tile_configs: int = 40
    kernels: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    n_rounds: int = 2
    timeout_s: float = 120.0


PLANS = {
    "sample": SamplePlan(),
    "tiny": SamplePlan(
        layout_configs=8,
        tile_configs=6,
        kernels=(
            "scale_transpose_a256_b2048",
            "mean_pool_n32_h8_w8_c256",
            "distances_m384_n320_d32",
        ),
        programs=("mlp_b16", "attention_b2"),
    ),
}


def plan_named(name: str) -> SamplePlan:
    """Return the plan called `name`.

    Raises:
        UsageError: there is none.
    """
    if name not in PLANS:
        raise UsageError(f"--plan {name}: no such plan; known: {', '.join(PLANS)}")
    return PLANS[name]


def tile_split(family: str) -> str:
    """Return the split in which all kernels of a family lie."""
    if family in TEST_KERNELS:
        return "test"
    return "valid" if family in VALID_KERNELS else "train"


def sample_jobs(plan: SamplePlan, *, seed: int = 0, device: str | None = None) -> list[Job]:
    """Return the graphs of a plan, ordered so that every collection and split grows alike.

    Stopped early, the tree holds about the same share of each layout collection and split.
    """
    queues: dict[tuple[str, str], list[Job]] = {}
    for job in (*_tile_jobs(plan, seed, device), *_layout_jobs(plan, seed, device)):
        queues.setdefault((job.collection.name, job.split), []).append(job)
    placed = [
        ((place + 0.5) / len(queue) * (TILE_SHARE if name.startswith("tile") else 1.0), number, job)
        for number, ((name, _), queue) in enumerate(queues.items())
        for place, job in enumerate(_by_turns(queue))
    ]
    return [job for _, _, job in sorted(placed, key=lambda entry: entry[:2])]


def _by_turns(queue: Sequence[Job]) -> list[Job]:
    """Take one job of each family in turn."""
    seen: dict[str, int] = {}
    turns = []
    for job in queue:
        turns.append((seen.get(job.family, 0), job))
        seen[job.family] = seen.get(job.family, 0) + 1
    return [job for _, job in sorted(turns, key=lambda turn: turn[0])]


def _tile_jobs(plan: SamplePlan, seed: int, device: str | None) -> list[Job]:
    return [
        Job(
            source=TileSource(kernel.name, device),
            program=kernel.name,
            family=kernel.family,
            collection=collection_named("tile:xla"),
            split=tile_split(kernel.family),
            search="tiles",
            n_configs=plan.tile_configs,
            seed=seed,
            n_rounds=plan.n_rounds,
            timeout_s=plan.timeout_s,
        )
        for kernel in tile_catalogue().values()
        if not plan.kernels or kernel.name in plan.kernels
    ]


def _layout_jobs(plan: SamplePlan, seed: int, device: str | None) -> list[Job]:
    from data.collect.programs import catalogue, split_of

    return [
        Job(
            source=LayoutSource(program.name, device),
            program=program.name,
            family=program.family,
            collection=collection_named(f"layout:{program.source}:{search}"),
            split=split_of(program),
            search=search,
            n_configs=plan.layout_configs,
            seed=seed,
            n_rounds=plan.n_rounds,
            timeout_s=plan.timeout_s,
        )
        for program in catalogue()
        if not plan.programs or program.name in plan.programs
        for search in LAYOUT_SEARCHES
    ]
