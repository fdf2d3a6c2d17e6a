"""The graphs that `collect` measures: one search and one file each. Also those of the sample."""

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.measure.program import OpenProgram
from autotune.measure.search import SEARCHES
from autotune.measure.worker import DEVICES, Session
from autotune.programs.catalogue import NO_INPUTS, ProgramInputs, catalogue, is_file, rows
from autotune.programs.files import load_program
from autotune.spaces import open_program
from common.errors import UsageError
from common.reproducibility import generator
from data.labels import file_stem
from data.tree import SPLITS, Collection, GraphFile, collection_named

Manifest = Mapping[str, Mapping[str, Any]]

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
class CollectRequest(MeasurementSettings):
    """One graph to measure.

    Attributes:
        decides: A key of `SPACES`.
        split: "train", "valid" or "test".
        search: A key of `autotune.measure.search.SEARCHES`.
        device: "cpu", "gpu" or "tpu". None lets JAX choose.
        is_users: Whether the program is a user's, who may edit it.
    """

    open_measurable: OpenProgram
    program: str
    family: str
    collection: Collection
    decides: str
    split: str = "train"
    search: str = "random"
    device: str | None = None
    is_users: bool = False

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
        """Return the path of the journal of the first or the second measurement."""
        kind = "again" if again else "first"
        return out / JOURNALS / self.collection.slug / f"{self.program}.{kind}.jsonl"

    def options(self) -> dict[str, Any]:
        """Return the options of the measurement for the manifest.

        A repeated call must have the same options. Only the number of rounds may grow.
        """
        keys = ("program", "family", "split", "search", "seed", "device")
        options = {key: getattr(self, key) for key in keys}
        return options | {"n_configs_asked": self.n_configs, "rounds": self.n_rounds}

    def generator(self, stage: str) -> np.random.Generator:
        return generator(self.seed, stage, self.search, self.program)

    def start_worker(self) -> Session:
        """Return a worker process for the program."""
        return Session(self.open_measurable, timeout_s=self.timeout_s, label=self.program)


def make_request(
    program: str,
    *,
    kind: str,
    search: str = "random",
    split: str = "train",
    device: str | None = None,
    effort: MeasurementSettings,
    inputs: ProgramInputs = NO_INPUTS,
) -> CollectRequest:
    """Return the request that measures one kind of decisions of a program.

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
    return CollectRequest(
        open_measurable=partial(opener, program, (SPACES[kind],), device, inputs),
        program=source.name,
        family=source.family,
        collection=collection_named(collection),
        decides=kind,
        split=split,
        search=search,
        device=device,
        is_users=":" in program or is_file(program),
        **asdict(effort),
    )


def sample_requests(*, seed: int = 0, device: str | None = None) -> list[CollectRequest]:
    """Return the requests of the sample, with all collections and splits interleaved.

    If the sample is stopped early, it has about the same share of each of them.
    """
    queues: dict[tuple[str, str], list[CollectRequest]] = {}
    for row, search in itertools.product(rows(), SEARCHES):
        effort = replace(SAMPLE_SETTINGS, n_configs=int(row["configs"]), seed=seed)
        how: dict[str, Any] = {"split": row["split"], "device": device, "effort": effort}
        request = make_request(row["program"], kind="layout", search=search, **how)
        queues.setdefault((request.collection.name, request.split), []).append(request)
    placed = [
        ((place + 0.5) / len(queue), request)
        for queue in queues.values()
        for place, request in enumerate(queue)
    ]
    return [request for _, request in sorted(placed, key=lambda entry: entry[0])]


def known_programs(kind: str) -> list[tuple[str, str]]:
    """Return the name and family of each program of the catalogue.

    Raises:
        UsageError: There is no such kind.
    """
    _check("--kind", kind, tuple(SPACES))
    return [(program.name, program.family) for program in catalogue()]


def _check(option: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise UsageError(f"{option} {value}: no such value; known: {', '.join(values)}")


def is_done(manifest: Manifest, request: CollectRequest, out: Path) -> bool:
    """Return whether a graph was measured or left out. A request with more rounds is not done.

    Raises:
        UsageError: The graph was measured with other options.
    """
    entries = {**manifest["graphs"], **manifest["left_out"]}
    if request.submission_id not in entries:
        return False
    entry = entries[request.submission_id]
    for key, value in request.options().items():
        if key == "rounds" and entry.get(key, value) < value and request.journal(out).is_file():
            return False
        if entry.get(key) != value:
            fault = f"was measured with {key} {entry.get(key)}, not {value}"
            raise UsageError(f"{request.submission_id}: {fault}; give another --out")
    return True


def check_family(manifest: Manifest, request: CollectRequest) -> None:
    """Check that a family is in one split. Otherwise scores would be too good.

    Raises:
        UsageError: Another split has a graph of the family.
    """
    for submission_id, entry in manifest["graphs"].items():
        kind, split = submission_id.split(":")[0], entry["split"]
        is_same = (kind, entry["family"]) == (request.collection.kind, request.family)
        if is_same and split != request.split:
            fault = f"its family {request.family} is in the {split} split ({entry['program']})"
            raise UsageError(
                f"{request.submission_id}: {fault}, not in {request.split}; "
                f"give --split {split}, another FAMILY or another --out"
            )
