"""The jobs of a collection: one graph, one search and one file. Also the jobs of the sample."""

import itertools
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.measure.program import OpenProgram
from autotune.measure.search import SEARCHES
from autotune.measure.worker import DEVICES
from autotune.programs.catalogue import NO_INPUTS, ProgramInputs, catalogue, is_file, rows
from autotune.programs.files import load_program
from autotune.spaces import open_program
from common.errors import UsageError
from data.labels import file_stem
from data.tree import SPLITS, Collection, GraphFile, collection_named

JOURNALS = "journal"
# The space of each `--kind`.
SPACES = {"layout": "layouts", "options": "options", "fusion": "fusion"}


@dataclass(frozen=True)
class MeasurementSettings:
    """The options of a measurement that mean the same for all programs.

    Attributes:
        timeout_s: Seconds after which a config counts as failed.
    """

    n_configs: int = 100
    n_rounds: int = 2
    timeout_s: float = 60.0
    seed: int = 0


# The catalogue has the number of configs of each program of the sample.
SAMPLE_SETTINGS = MeasurementSettings(n_rounds=6, timeout_s=120.0)


@dataclass(frozen=True, kw_only=True)
class Job(MeasurementSettings):
    """One graph to measure.

    Attributes:
        decides: A key of `SPACES`.
        split: "train", "valid" or "test".
        search: A key of `autotune.measure.search.SEARCHES`.
        device: "cpu", "gpu" or "tpu". None lets JAX choose.
        is_own: Whether the program is a user's, who may edit it.
    """

    open_measurable: OpenProgram
    program: str
    family: str
    collection: Collection
    decides: str
    split: str = "train"
    search: str = "random"
    device: str | None = None
    is_own: bool = False

    @property
    def stem(self) -> str:
        """Return the stem of the file: the program's name, or 32 hex digits in the test split."""
        return file_stem(self.program, self.split)

    @property
    def submission_id(self) -> str:
        return f"{self.collection.name}:{self.stem}"

    def file(self, out: Path) -> GraphFile:
        path = out / "npz" / self.collection.folder / self.split / f"{self.stem}.npz"
        return GraphFile(self.collection, self.split, self.stem, path)

    def journal(self, out: Path, *, again: bool = False) -> Path:
        """Return the path of the journal.

        Args:
            again: Whether it is the journal of the second measurement.
        """
        kind = "again" if again else "first"
        return out / JOURNALS / self.collection.slug / f"{self.program}.{kind}.jsonl"

    def request(self) -> dict[str, Any]:
        """Return the options of the measurement for the manifest.

        A repeated call must have the same options. Only the number of rounds may grow.
        """
        keys = ("program", "family", "split", "search", "seed", "device")
        request = {key: getattr(self, key) for key in keys}
        return request | {"n_configs_asked": self.n_configs, "rounds": self.n_rounds}


def make_job(
    program: str,
    *,
    kind: str,
    search: str = "random",
    split: str = "train",
    device: str | None = None,
    effort: MeasurementSettings,
    inputs: ProgramInputs = NO_INPUTS,
) -> Job:
    """Return the job that measures one kind of decisions of a program.

    Fusion is stored like layouts, and options like tiles. A model of layouts or tiles cannot learn
    from them, so they need a separate `--out`.

    Args:
        program: Name in the catalogue, "module:name", FILE or FILE#MODULE.
        kind: "layout", "options" or "fusion".
        search: "random" or "default".
        split: "train", "valid" or "test".
        device: "cpu", "gpu" or "tpu". None lets JAX choose.

    Raises:
        UsageError: There is no such kind, search, split or device.
    """
    _check("--kind", kind, tuple(SPACES))
    _check("--search", search, tuple(SEARCHES))
    _check("--split", split, SPLITS)
    if device is not None:
        _check("--device", device, DEVICES)
    source = load_program(program, inputs)
    collection = "tile:xla" if kind == "options" else f"layout:{source.source}:{search}"
    # The compiler adds copies for layouts itself, so only the other kinds check the outputs.
    opener = partial(open_program, has_checks=kind != "layout")
    return Job(
        open_measurable=partial(opener, program, (SPACES[kind],), device, inputs),
        program=source.name,
        family=source.family,
        collection=collection_named(collection),
        decides=kind,
        split=split,
        search=search,
        device=device,
        is_own=":" in program or is_file(program),
        **asdict(effort),
    )


def sample_jobs(*, seed: int = 0, device: str | None = None) -> list[Job]:
    """Return the jobs of the sample, with all collections and splits interleaved.

    If the sample is stopped early, it has about the same share of each of them.

    Args:
        device: "cpu", "gpu" or "tpu". None lets JAX choose.
    """
    queues: dict[tuple[str, str], list[Job]] = {}
    for row, search in itertools.product(rows(), SEARCHES):
        effort = replace(SAMPLE_SETTINGS, n_configs=int(row["configs"]), seed=seed)
        how: dict[str, Any] = {"split": row["split"], "device": device, "effort": effort}
        job = make_job(row["program"], kind="layout", search=search, **how)
        queues.setdefault((job.collection.name, job.split), []).append(job)
    placed = [
        ((place + 0.5) / len(queue), job)
        for queue in queues.values()
        for place, job in enumerate(queue)
    ]
    return [job for _, job in sorted(placed, key=lambda entry: entry[0])]


def known_programs(kind: str) -> list[tuple[str, str]]:
    """Return the name and family of each program of the catalogue.

    Raises:
        UsageError: There is no such kind.
    """
    _check("--kind", kind, tuple(SPACES))
    return [(program.name, program.family) for program in catalogue()]


def _check(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} {value}: no such value; known: {', '.join(known)}")


def is_done(manifest: dict[str, dict[str, Any]], job: Job, out: Path) -> bool:
    """Return whether a graph was measured or left out. A job with more rounds is not done.

    Raises:
        UsageError: The graph was measured with other options.
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
                f"{job.submission_id}: was measured with {key} "
                f"{entry.get(key)}, not {value}; give another --out"
            )
    return True


def check_family(manifest: dict[str, dict[str, Any]], job: Job) -> None:
    """Check that a family is in one split. Otherwise scores would be too good.

    Raises:
        UsageError: Another split has a graph of the family.
    """
    for submission_id, entry in manifest["graphs"].items():
        same = submission_id.split(":")[0] == job.collection.kind and entry["family"] == job.family
        if same and entry["split"] != job.split:
            raise UsageError(
                f"{job.submission_id}: its family {job.family} is in the {entry['split']} split "
                f"({entry['program']}), not in {job.split}; give --split {entry['split']}, another "
                "FAMILY or another --out"
            )
