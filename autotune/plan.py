"""The graphs that `collect` measures: one search and one file each. Also those of its plans."""

import itertools
from collections.abc import Collection as Names
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.measure.program import OpenProgram
from autotune.measure.search import SEARCHES
from autotune.measure.worker import DEVICES, Session
from autotune.programs.catalogue import NO_INPUTS, ProgramInputs, ProgramSource, is_file, rows
from autotune.programs.files import load_program
from autotune.spaces import open_program
from common.errors import UsageError, one_of
from common.reproducibility import generator
from data.labels import file_stem
from data.tree import SPLITS, Collection, GraphFile, collection_named

Manifest = Mapping[str, Mapping[str, Any]]

JOURNALS = "journal"
# The space of each `--kind`.
KINDS = {"layout": "layouts", "options": "options", "fusion": "fusion"}
# The searches of each plan, its rounds, and the time limit of a config in seconds. The catalogue
# has the programs of each plan, and their numbers of configs.
PLANS: Mapping[str, tuple[tuple[str, ...], int, float]] = {
    "sample": (tuple(SEARCHES), 6, 120.0),
    "large": (("random",), 12, 600.0),
}


@dataclass(frozen=True)
class CollectRequest:
    """One graph to measure.

    Fusion is stored like layouts, and options like tiles. A model of layouts or tiles cannot learn
    from them, so they need a separate `--out`.

    Attributes:
        program: Name in the catalogue, "module:name", FILE or FILE#MODULE.
        kind: A key of `KINDS`.
        search: A key of `autotune.measure.search.SEARCHES`.
        split: "train", "valid" or "test".
        device: "cpu", "gpu" or "tpu". None lets JAX choose.
        timeout_s: Seconds after which a config counts as failed.
    """

    program: str
    kind: str = "layout"
    search: str = "random"
    split: str = "train"
    device: str | None = None
    n_configs: int = 100
    n_rounds: int = 2
    timeout_s: float = 60.0
    seed: int = 0
    inputs: ProgramInputs = NO_INPUTS

    def __post_init__(self) -> None:
        """Check the values and find the program."""
        check_choice("--kind", self.kind, KINDS)
        check_choice("--search", self.search, SEARCHES)
        check_choice("--split", self.split, SPLITS)
        if self.device is not None:
            check_choice("--device", self.device, DEVICES)
        _ = self.source

    @cached_property
    def source(self) -> ProgramSource:
        return load_program(self.program, self.inputs)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def collection(self) -> Collection:
        is_tile = self.kind == "options"
        return collection_named(
            "tile:xla" if is_tile else f"layout:{self.source.source}:{self.search}"
        )

    @property
    def is_users(self) -> bool:
        """Return whether the program is a user's, who may edit it."""
        return ":" in self.program or is_file(self.program)

    @property
    def stem(self) -> str:
        """Return the stem of the file: the program's name, or 32 hex digits in the test split."""
        return file_stem(self.name, self.split)

    @property
    def submission_id(self) -> str:
        return f"{self.collection.name}:{self.stem}"

    def file(self, out: Path) -> GraphFile:
        path = out / "npz" / self.collection.folder / self.split / f"{self.stem}.npz"
        return GraphFile(self.collection, self.split, self.stem, path)

    def journal(self, out: Path, *, again: bool = False) -> Path:
        """Return the path of the journal of the first or the second measurement."""
        kind = "again" if again else "first"
        return out / JOURNALS / self.collection.slug / f"{self.name}.{kind}.jsonl"

    def options(self) -> dict[str, Any]:
        """Return the options of the measurement for the manifest.

        A repeated call must have the same options. Only the number of rounds may grow.
        """
        options = {key: getattr(self, key) for key in ("split", "search", "seed", "device")}
        program = {"program": self.name, "family": self.source.family}
        return program | options | {"n_configs_asked": self.n_configs, "rounds": self.n_rounds}

    def generator(self, stage: str) -> np.random.Generator:
        return generator(self.seed, stage, self.search, self.name)

    @property
    def open_measurable(self) -> OpenProgram:
        """Return the function that opens the program in a worker."""
        # The compiler adds copies for layouts itself, so only the other kinds check the outputs.
        opener = partial(open_program, has_checks=self.kind != "layout")
        return partial(opener, self.program, (KINDS[self.kind],), self.device, self.inputs)

    def start_worker(self) -> Session:
        """Return a worker process for the program."""
        return Session(self.open_measurable, timeout_s=self.timeout_s, label=self.name)


def plan_requests(plan: str, *, seed: int = 0, device: str | None = None) -> list[CollectRequest]:
    """Return the requests of a key of `PLANS`, with all collections and splits interleaved.

    If the measurement is stopped early, it has about the same share of each of them.
    """
    searches, n_rounds, timeout_s = PLANS[plan]
    of_plan = [row for row in rows() if row["plan"] == plan]
    queues: dict[tuple[str, str], list[CollectRequest]] = {}
    for row, search in itertools.product(of_plan, searches):
        effort = (int(row["configs"]), n_rounds, timeout_s, seed)
        request = CollectRequest(row["program"], "layout", search, row["split"], device, *effort)
        queues.setdefault((request.collection.name, request.split), []).append(request)
    by_place = [
        ((place + 0.5) / len(queue), request)
        for queue in queues.values()
        for place, request in enumerate(queue)
    ]
    return [request for _, request in sorted(by_place, key=lambda entry: entry[0])]


def check_choice(option: str, value: str, names: Names[str]) -> None:
    """Raise a UsageError if an option has an unknown value."""
    if value not in names:
        raise UsageError(f"{option} {value}: no such value; known: {one_of(value, names)}")


def is_done(manifest: Manifest, request: CollectRequest, out: Path) -> bool:
    """Return whether a graph was measured or left out. A request with more rounds is not done."""
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
    """Check that a family is in one split. Otherwise scores would be too good."""
    family = request.source.family
    for submission_id, entry in manifest["graphs"].items():
        kind, split = submission_id.split(":")[0], entry["split"]
        is_same = (kind, entry["family"]) == (request.collection.kind, family)
        if is_same and split != request.split:
            fault = f"its family {family} is in the {split} split ({entry['program']})"
            raise UsageError(
                f"{request.submission_id}: {fault}, not in {request.split}; "
                f"give --split {split}, another FAMILY or another --out"
            )
