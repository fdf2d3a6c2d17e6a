"""What to measure: one graph, under one search, for one place in the tree."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.collect.measuring.worker import SubjectSource
from data.tree import Collection, GraphFile
from data.withheld import file_stem

MANIFEST = "manifest.json"
JOURNALS = "journal"


@dataclass(frozen=True)
class Job:
    """One graph to measure.

    Attributes:
        source: what the worker opens.
        program: the graph's name; its file is called so, but in the test split.
        family: programs of one family differ in their sizes alone.
        collection: where the graph goes.
        split: "train", "valid" or "test".
        search: a name in `data.collect.measuring.search.SEARCHES`.
        n_configs: how many configs to try.
        seed: of the search and of the order of visits.
        n_rounds: interleaved rounds, after the search's own.
        timeout_s: after which a config counts as failed.
    """

    source: SubjectSource
    program: str
    family: str
    collection: Collection
    split: str = "train"
    search: str = "random"
    n_configs: int = 100
    seed: int = 0
    n_rounds: int = 2
    timeout_s: float = 60.0

    @property
    def stem(self) -> str:
        """Return the file's stem: the program's name, or 32 hex digits in the test split."""
        return file_stem(self.program, self.split)

    @property
    def submission_id(self) -> str:
        """Return the ID of the graph's submission row."""
        return f"{self.collection.name}:{self.stem}"

    def file(self, out: Path) -> GraphFile:
        """Return where the graph's file lies below `out`."""
        path = out / "npz" / self.collection.folder / self.split / f"{self.stem}.npz"
        return GraphFile(self.collection, self.split, self.stem, path)

    def journal(self, out: Path, *, again: bool = False) -> Path:
        """Return where the visits are recorded; the second measurement has its own file."""
        kind = "again" if again else "first"
        return out / JOURNALS / self.collection.slug / f"{self.program}.{kind}.jsonl"

    def request(self) -> dict[str, Any]:
        """Return what makes two measurements of the graph the same one, for the manifest."""
        return {
            "program": self.program,
            "family": self.family,
            "split": self.split,
            "search": self.search,
            "n_configs_asked": self.n_configs,
            "seed": self.seed,
            "rounds": self.n_rounds,
            "device": getattr(self.source, "device", None),
        }
