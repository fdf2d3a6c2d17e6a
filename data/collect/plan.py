"""What the embedded sample holds: which kernels and programs, in which splits and order."""

from collections.abc import Sequence
from dataclasses import replace

from data.collect.job import LAYOUT_SEARCHES, Effort, Job, make_job
from data.collect.programs.catalogue import CATALOGUE
from data.collect.tiles.catalogue import catalogue as tile_catalogue
from data.collect.tiles.catalogue import families

TILE_SHARE = 0.35  # kernels are cheap: all are done when about a third of the programs is


# Of each program and search; the catalogue says how many configs.
LAYOUTS = Effort(n_rounds=6, timeout_s=120.0)
TILES = Effort(40, timeout_s=120.0)  # of each kernel


def sample_jobs(*, seed: int = 0, device: str | None = None) -> list[Job]:
    """Return the sample's graphs, ordered so that every collection and split grows alike.

    Stopped early, the tree holds about the same share of each layout collection and split.
    """
    tiles, layouts = replace(TILES, seed=seed), replace(LAYOUTS, seed=seed)
    jobs = [
        make_job(name, kind="tile", split=split, device=device, effort=tiles)
        for name, kernel in tile_catalogue().items()
        for split in [families()[kernel.family]["split"]]
    ]
    jobs += [
        make_job(
            program.name,
            kind="layout",
            search=search,
            split=siblings.split,
            device=device,
            effort=replace(layouts, n_configs=siblings.n_configs),
        )
        for siblings in CATALOGUE
        for program in siblings.programs()
        for search in LAYOUT_SEARCHES
    ]
    return _in_order(jobs)


def _in_order(jobs: Sequence[Job]) -> list[Job]:
    queues: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        queues.setdefault((job.collection.name, job.split), []).append(job)
    placed = [
        ((place + 0.5) / len(queue) * (TILE_SHARE if name.startswith("tile") else 1.0), job)
        for (name, _), queue in queues.items()
        for place, job in enumerate(queue)
    ]
    return [job for _, job in sorted(placed, key=lambda entry: entry[0])]
