"""From the options of one `collect` call to what is to be measured."""

from data.collect.job import Job
from data.collect.layout_subject import ROUTES, LayoutSource
from data.collect.tile_kernels import catalogue as tile_catalogue
from data.collect.tile_subject import TileSource, find_kernel
from data.errors import UsageError
from data.tree import SPLITS, collection_named

KINDS = ("layout", "tile")
LAYOUT_SEARCHES = ("random", "default")


def program_job(
    program: str,
    *,
    kind: str,
    search: str,
    split: str,
    route: str,
    device: str | None,
    n_configs: int,
    n_rounds: int,
    timeout_s: float,
    seed: int,
) -> Job:
    """Return the job that measures one program; tiles know one search and ignore `route`.

    Raises:
        UsageError: an option has no such value; the known ones are listed.
        PipelineError: there is no such program, or its module fails to import.
    """
    _check("--kind", kind, KINDS)
    _check("--split", split, SPLITS)
    if kind == "tile":
        kernel = find_kernel(program)
        return Job(
            source=TileSource(program, device),
            program=kernel.name,
            family=kernel.family,
            route="tiles",
            collection=collection_named("tile:xla"),
            split=split,
            search="tiles",
            n_configs=n_configs,
            seed=seed,
            n_rounds=n_rounds,
            timeout_s=timeout_s,
        )
    _check("--search", search, LAYOUT_SEARCHES)
    _check("--route", route, ROUTES)
    from data.collect.programs import load_program

    found = load_program(program)
    return Job(
        source=LayoutSource(program, route, device),
        program=found.name,
        family=found.family,
        route=route,
        collection=collection_named(f"layout:{found.source}:{search}"),
        split=split,
        search=search,
        n_configs=n_configs,
        seed=seed,
        n_rounds=n_rounds,
        timeout_s=timeout_s,
    )


def known_programs(kind: str) -> list[tuple[str, str]]:
    """Return name and family of each program of the catalogue.

    Raises:
        UsageError: there is no such kind.
    """
    _check("--kind", kind, KINDS)
    if kind == "tile":
        return [(kernel.name, kernel.family) for kernel in tile_catalogue().values()]
    from data.collect.programs import catalogue

    return [(program.name, program.family) for program in catalogue()]


def _check(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} {value}: no such value; known: {', '.join(known)}")
