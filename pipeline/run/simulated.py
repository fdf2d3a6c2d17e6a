"""How long a run would take elsewhere: its own jobs, on graphs of which sizes alone are known."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from data.official.published import PartSize
from data.tree import GraphFile, collection_named
from ensembles.ensemble import choose_source
from models.config.recipe import Recipe
from pipeline.jobs.run_jobs import Job, Simulated, simulate
from pipeline.jobs.workers import BLOCK_BYTES, BLOCK_FILES
from pipeline.planning.plan import Machine, disk_bytes, processor_s
from pipeline.run.jobs import Law, RunState

NOWHERE = Path("/dev/null/run")  # where nothing can be done already


@dataclass(frozen=True)
class SimulatedRun:
    """What a run would take on some GPUs and cores.

    Attributes:
        prepare: packing and audit.
        work: trainings and rankings.
        score_s: what comes after them, on one core.
    """

    n_gpus: int
    n_cores: int
    prepare: Simulated
    work: Simulated
    score_s: float

    @property
    def hours(self) -> float:
        return (self.prepare.seconds + self.work.seconds + self.score_s) / 3600


def simulate_run(
    recipe: Recipe, sizes: Sequence[PartSize], machine: Machine, *, n_cores: int
) -> SimulatedRun:
    """Do a run's jobs on paper, with a worker on each core: times are those of one thread."""
    n_gpus = machine.n_cards if machine.card and recipe.accelerator != "cpu" else 0
    workers = [True] * n_gpus + [False] * max(1, n_cores - n_gpus)
    state = RunState(
        recipe,
        NOWHERE,
        [
            GraphFile(collection_named(part.collection), part.split, str(number), NOWHERE)
            for part in sizes
            for number in range(part.graphs)
        ],
    )
    for file in state.files:
        if file.split == "train":
            state.usable.setdefault(file.collection.name, []).append(file)
    collections = dict.fromkeys(file.collection for file in state.files)
    state.sources = {c.name: choose_source(c, state.usable, {}) for c in collections}
    prepare = simulate(list(_packing(recipe, sizes)), [False] * n_cores)
    work = simulate(state.jobs(Law(recipe, sizes, machine)), workers)
    ranked = [part for part in sizes if part.split != "train"]
    score_s = sum(part.graphs * processor_s(f"{part.kind} score", part) for part in ranked)
    return SimulatedRun(n_gpus, n_cores, prepare, work, score_s)


def _packing(recipe: Recipe, sizes: Sequence[PartSize]) -> Iterator[Job]:
    for part in sizes:
        n_bytes = disk_bytes(recipe, [part])["raw"]
        n = min(part.graphs, ceil(max(n_bytes / BLOCK_BYTES, part.graphs / BLOCK_FILES)))
        seconds = part.graphs * processor_s(f"{part.kind} prepare", part, part.configs)
        for number in range(1, n + 1):
            name = f"pack {part.collection}/{part.split} {number} of {n}"
            yield Job(name, print, seconds=seconds / n)
