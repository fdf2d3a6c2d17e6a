"""What the stages of one run share, and what each of them took."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.progress import log
from data.tree import COLLECTIONS, Collection, GraphFile
from ensembles.members import Member, Source, choose_source, members_of
from models.config.recipe import Recipe
from models.training.dataset import Unusable, split_usable
from pipeline.jobs.job import Cost, measured

SUBMISSION = {"test": "submission.csv", "valid": "submission-valid.csv"}


@dataclass
class Costs:
    """What the stages of this call took: wall and processor time (of processes it began as well).

    `peak_mib` is the peak of resident memory; None where the system does not tell.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float | None] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage; stages do not overlap, and one that comes again adds up."""
        with measured() as costs:
            yield
        self.add(name, costs[0])

    def add(self, name: str, cost: Cost) -> None:
        """Book what a part of a stage took."""
        self.seconds[name] = round(self.seconds.get(name, 0.0) + cost.seconds, 2)
        self.cpu_seconds[name] = round(self.cpu_seconds.get(name, 0.0) + cost.cpu_s, 2)
        peaks = [self.peak_mib.get(name), cost.peak_mib]
        self.peak_mib[name] = max((round(mib) for mib in peaks if mib is not None), default=None)


@dataclass
class RunState:
    """What the stages of one run share.

    Attributes:
        missing: each "collection/split" of which there is no graph.
        usable: train graphs to learn from, by collection.
        unusable: the others, with the reason.
        device: what the networks are computed on, as `tell_device` says.
        sources: who ranks each collection.
    """

    recipe: Recipe
    out: Path
    files: list[GraphFile]
    costs: Costs
    device: dict[str, Any] = field(default_factory=dict)
    usable: dict[str, list[GraphFile]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unusable: list[Unusable] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)

    def of(self, collection: Collection, split: str) -> list[GraphFile]:
        return [f for f in self.files if f.collection == collection and f.split == split]

    def members(self, collection: Collection) -> list[Member]:
        """Return the models that rank a collection, once its source is chosen."""
        source = self.sources[collection.name]
        return members_of(self.recipe, source.collection or collection, self.out, source)

    def trainings(self) -> list[tuple[Collection, Member]]:
        """List what is to be trained on what, once sources are chosen."""
        sources = [source.collection for source in self.sources.values() if source.collection]
        return [
            (collection, member)
            for collection in dict.fromkeys(map(self.recipe.learned_as, sources))
            for member in members_of(self.recipe, collection, self.out)
        ]

    def choose_sources(self) -> None:
        """Find out which collections can be learned from, and who ranks those that cannot."""
        reasons: dict[str, str] = {}
        for collection in COLLECTIONS:
            usable, unusable = split_usable(self.of(collection, "train"))
            self.unusable += unusable
            if usable:
                self.usable[collection.name] = usable
            else:
                listed = "; ".join(f"{graph.file.name}: {graph.reason}" for graph in unusable[:3])
                reasons[collection.name] = (
                    f"no train graph to learn from ({listed})" if unusable else "no train split"
                )
        for collection in COLLECTIONS:
            if not any(self.of(collection, split) for split in SUBMISSION):
                continue
            source = choose_source(collection, self.usable, reasons)
            self.sources[collection.name] = source
            if source.reason:
                taken = source.collection.name if source.collection else "a heuristic"
                log.info(f"{collection.name}: {source.reason}; ranked by {taken}")
