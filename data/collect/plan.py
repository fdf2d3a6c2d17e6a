"""What the embedded sample holds: which kernels and programs, in which splits and order."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from data.collect.job import LAYOUT_SEARCHES, Effort, Job, make_job
from data.collect.programs.catalogue import catalogue, split_of
from data.collect.tiles.catalogue import catalogue as tile_catalogue
from data.collect.tiles.catalogue import families

TILE_SHARE = 0.35  # kernels are cheap: all are done when about a third of the programs is


@dataclass(frozen=True)
class SamplePlan:
    """How much to measure.

    Attributes:
        layouts: of each program and search.
        tiles: of each kernel, whose tiles are so many at most.
        kernels: kernels to measure; empty for the whole catalogue.
        programs: programs to measure; empty for the whole catalogue.
    """

    layouts: Effort
    tiles: Effort
    kernels: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


PLANS = {
    "sample": SamplePlan(Effort(120, timeout_s=120.0), Effort(40, timeout_s=120.0)),
    "tiny": SamplePlan(
        layouts=Effort(8, timeout_s=120.0),
        tiles=Effort(6, timeout_s=120.0),
        kernels=(
            "scale_transpose_a256_b2048",
            "mean_pool_n32_h8_w8_c256",
            "distances_m384_n320_d32",
        ),
        programs=("mlp_b16", "attention_b2"),
    ),
}


def sample_jobs(plan: SamplePlan, *, seed: int = 0, device: str | None = None) -> list[Job]:
    """Return the graphs of a plan, ordered so that every collection and split grows alike.

    Stopped early, the tree holds about the same share of each layout collection and split.
    """
    tiles, layouts = replace(plan.tiles, seed=seed), replace(plan.layouts, seed=seed)
    jobs = [
        make_job(
            name, kind="tile", split=families()[k.family]["split"], device=device, effort=tiles
        )
        for name, k in tile_catalogue().items()
        if not plan.kernels or name in plan.kernels
    ]
    jobs += [
        make_job(p.name, kind="layout", search=s, split=split_of(p), device=device, effort=layouts)
        for p in catalogue()
        if not plan.programs or p.name in plan.programs
        for s in LAYOUT_SEARCHES
    ]
    return _in_order(jobs)


def _in_order(jobs: Sequence[Job]) -> list[Job]:
    """Mix the collections and splits; within each, take one job of each family in turn."""
    queues: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        queues.setdefault((job.collection.name, job.split), []).append(job)
    placed = []
    for number, ((name, _), queue) in enumerate(queues.items()):
        share = TILE_SHARE if name.startswith("tile") else 1.0
        seen: Counter[str] = Counter()
        turns = []
        for job in queue:
            turns.append((seen[job.family], job))
            seen[job.family] += 1
        for place, (_, job) in enumerate(sorted(turns, key=lambda turn: turn[0])):
            placed.append(((place + 0.5) / len(queue) * share, number, job))
    return [job for _, _, job in sorted(placed, key=lambda entry: entry[:2])]
