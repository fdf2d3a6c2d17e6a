"""What to measure: one graph, under one search, for one place in the tree; or the sample's all."""

import itertools
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.measure.worker import DEVICES, OpenProgram
from autotune.programs.catalogue import catalogue, load_program, rows
from autotune.spaces import open_decided, open_program
from autotune.tiles.catalogue import catalogue as tile_catalogue
from autotune.tiles.catalogue import families, find_kernel
from common.errors import UsageError
from data.labels import file_stem
from data.tree import SPLITS, Collection, GraphFile, collection_named

JOURNALS = "journal"
# What may be varied, and the space of decisions that holds it.
SPACES = {"layout": "layouts", "tile": "tiles", "options": "options", "fusion": "fusion"}
LAYOUT_SEARCHES = ("random", "default")


@dataclass(frozen=True)
class MeasurementSettings:
    """How hard to measure: the options that mean the same for every program."""

    n_configs: int = 100  # how many configs to try
    n_rounds: int = 2  # interleaved rounds, after the search's own
    timeout_s: float = 60.0  # after which a config counts as failed
    seed: int = 0  # of the search and of the order of visits


# Of the sample: each program and search, whose configs the catalogue numbers, and each kernel.
SAMPLE_LAYOUTS, SAMPLE_TILES = (
    MeasurementSettings(n_rounds=6, timeout_s=120.0),
    MeasurementSettings(40, timeout_s=120.0),
)
TILE_SHARE = 0.35  # kernels are cheap: all are done when about a third of the programs is


@dataclass(frozen=True, kw_only=True)
class Job(MeasurementSettings):
    """One graph to measure."""

    open_measurable: OpenProgram  # what the worker opens
    program: str  # the graph's name; its file is called so, but in the test split
    family: str  # programs of one family differ in their sizes alone
    collection: Collection  # where the graph goes
    decides: str  # a name in SPACES
    split: str = "train"  # "train", "valid" or "test"
    search: str = "random"  # a name in `autotune.measure.search.SEARCHES`
    device: str | None = None  # "cpu", "gpu", "tpu", or None for what JAX chooses
    is_own: bool = False  # the program is a user's, who may edit it

    @property
    def stem(self) -> str:
        """Return the file's stem: the program's name, or 32 hex digits in the test split."""
        return file_stem(self.program, self.split)

    @property
    def submission_id(self) -> str:
        return f"{self.collection.name}:{self.stem}"

    def file(self, out: Path) -> GraphFile:
        path = out / "npz" / self.collection.folder / self.split / f"{self.stem}.npz"
        return GraphFile(self.collection, self.split, self.stem, path)

    def journal(self, out: Path, *, again: bool = False) -> Path:
        """Return where the visits are recorded; the second measurement has its own file."""
        kind = "again" if again else "first"
        return out / JOURNALS / self.collection.slug / f"{self.program}.{kind}.jsonl"

    def request(self) -> dict[str, Any]:
        """Return what makes two measurements of the graph the same one, for the manifest."""
        keys = ("program", "family", "split", "search", "seed", "device")
        asked = {key: getattr(self, key) for key in keys}
        return asked | {"n_configs_asked": self.n_configs, "rounds": self.n_rounds}


def make_job(
    program: str,
    *,
    kind: str,
    search: str = "random",
    split: str = "train",
    device: str | None = None,
    effort: MeasurementSettings,
) -> Job:
    """Return the job that measures one kind of decisions on a program, or a kernel's tiles.

    Fusion goes where layouts go, and options where tiles go; neither is what those hold, so that
    they belong into a tree of their own.

    Raises:
        UsageError: there is no such kind, search, split or device; a kernel's kind is tile alone.
        PipelineError: there is no such program, or its module fails to import.
    """
    _check("--kind", kind, tuple(SPACES))
    _check("--search", search, LAYOUT_SEARCHES)
    _check("--split", split, SPLITS)
    if device is not None:
        _check("--device", device, DEVICES)
    if kind == "tile":
        kernel = find_kernel(program)
        name, family, search, place = kernel.name, kernel.family, "tiles", "tile:xla"
    else:
        source = load_program(program)
        name, family, place = source.name, source.family, f"layout:{source.source}:{search}"
        place = "tile:xla" if kind == "options" else place
    # But for layouts, which the compiler itself keeps to, outputs are compared with what they
    # should be.
    open_measurable = open_program if kind == "layout" else open_decided
    return Job(
        open_measurable=partial(open_measurable, program, (SPACES[kind],), device),
        program=name,
        family=family,
        collection=collection_named(place),
        decides=kind,
        split=split,
        search=search,
        device=device,
        is_own=":" in program,
        **asdict(effort),
    )


def sample_jobs(*, seed: int = 0, device: str | None = None) -> list[Job]:
    """Return the sample's graphs, ordered so that every collection and split grows alike.

    Stopped early, the tree holds about the same share of each layout collection and split.
    """
    tiles, layouts = (replace(effort, seed=seed) for effort in (SAMPLE_TILES, SAMPLE_LAYOUTS))
    jobs = [
        make_job(
            name, kind="tile", split=families()[kernel.family]["split"], device=device, effort=tiles
        )
        for name, kernel in tile_catalogue().items()
    ]
    for row, search in itertools.product(rows(), LAYOUT_SEARCHES):
        effort = replace(layouts, n_configs=int(row["configs"]))
        how: dict[str, Any] = {"split": row["split"], "device": device, "effort": effort}
        jobs.append(make_job(row["program"], kind="layout", search=search, **how))
    queues: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        queues.setdefault((job.collection.name, job.split), []).append(job)
    placed = [
        ((place + 0.5) / len(queue) * (TILE_SHARE if name.startswith("tile") else 1.0), job)
        for (name, _), queue in queues.items()
        for place, job in enumerate(queue)
    ]
    return [job for _, job in sorted(placed, key=lambda entry: entry[0])]


def known_programs(kind: str) -> list[tuple[str, str]]:
    """Return name and family of each program of the catalogue; raises UsageError: no such kind."""
    _check("--kind", kind, tuple(SPACES))
    programs = tile_catalogue().values() if kind == "tile" else catalogue()
    return [(program.name, program.family) for program in programs]


def _check(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} {value}: no such value; known: {', '.join(known)}")


def is_done(manifest: dict[str, dict[str, Any]], job: Job, out: Path) -> bool:
    """Tell whether the graph is measured, or was left out; more rounds go on with its journal.

    A UsageError names the first difference to the request that it was measured with.
    """
    known = manifest["graphs"] | manifest["left_out"]
    if job.submission_id not in known:
        return False
    entry = known[job.submission_id]
    for key, value in job.request().items():
        if key == "rounds" and entry.get(key, value) < value and job.journal(out).is_file():
            return False
        if entry.get(key) != value:
            raise UsageError(
                f"{job.submission_id}: is there already, measured with {key} "
                f"{entry.get(key)}, not {value}; give another --out"
            )
    return True


def check_family(manifest: dict[str, dict[str, Any]], job: Job) -> None:
    """Keep a family in one split, or scores are too good; UsageError: names the other split."""
    for submission_id, entry in manifest["graphs"].items():
        same = submission_id.split(":")[0] == job.collection.kind and entry["family"] == job.family
        if same and entry["split"] != job.split:
            raise UsageError(
                f"{job.submission_id}: its family {job.family} lies in the {entry['split']} split "
                f"({entry['program']}), not in {job.split}; give --split {entry['split']}, another "
                "FAMILY or another --out"
            )
