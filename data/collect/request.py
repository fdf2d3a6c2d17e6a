"""From the options of one `collect` call to what is to be measured."""

from dataclasses import asdict, dataclass

from common.errors import UsageError
from data.collect.job import Job
from data.collect.layout_subject import LayoutSource
from data.collect.tiles.catalogue import catalogue as tile_catalogue
from data.collect.tiles.subject import TileSource, find_kernel
from data.tree import SPLITS, collection_named

KINDS = ("layout", "tile")
LAYOUT_SEARCHES = ("random", "default")


@dataclass(frozen=True)
class Effort:
    """How hard to measure: the options that mean the same for every program."""

    n_configs: int
    n_rounds: int
    timeout_s: float
    seed: int


def tile_job(program: str, *, split: str, device: str | None, effort: Effort) -> Job:
    """Return the job that measures the tiles of one kernel.

    Raises:
        UsageError: there is no such split.
        PipelineError: there is no such kernel, or its module fails to import.
    """
    _check("--split", split, SPLITS)
    kernel = find_kernel(program)
    return Job(
        source=TileSource(program, device),
        program=kernel.name,
        family=kernel.family,
        collection=collection_named("tile:xla"),
        split=split,
        search="tiles",
        **asdict(effort),
    )


def layout_job(program: str, *, search: str, split: str, device: str | None, effort: Effort) -> Job:
    """Return the job that measures the layouts of one program under one search.

    Raises:
        UsageError: there is no such search or split.
        PipelineError: there is no such program, or its module fails to import.
    """
    from data.collect.programs import load_program

    _check("--search", search, LAYOUT_SEARCHES)
    _check("--split", split, SPLITS)
    found = load_program(program)
    return Job(
        source=LayoutSource(program, device),
        program=found.name,
        family=found.family,
        collection=collection_named(f"layout:{found.source}:{search}"),
        split=split,
        search=search,
        **asdict(effort),
    )


def known_programs(kind: str) -> list[tuple[str, str]]:
    """Return name and family of each program of the catalogue.

    Raises:
        UsageError: there is no such kind.
    """
    check_kind(kind)
    if kind == "tile":
        return [(kernel.name, kernel.family) for kernel in tile_catalogue().values()]
    from data.collect.programs import catalogue

    return [(program.name, program.family) for program in catalogue()]


def check_kind(kind: str) -> None:
    """Refuse a kind that does not exist.

    Raises:
        UsageError: names the known ones.
    """
    _check("--kind", kind, KINDS)


def _check(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} {value}: no such value; known: {', '.join(known)}")
