"""What the stages of one run share, and what each of them took."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from common.progress import log
from data.audit.rows import AuditRow
from data.tree import COLLECTIONS, LAYOUT_COLLECTIONS, LAYOUTS, Collection, GraphFile
from ensembles.members import FLOOR, Member, Source, choose_source, members_of
from ensembles.scores import scores_path
from models.config.recipe import Recipe
from models.predict import read_scores
from models.training.dataset import Unusable, split_usable
from models.training.jobs import TrainJob
from pipeline.jobs.job import Cost, Job, measured
from pipeline.run.jobs import Law, Ranking, ranking_jobs, training_jobs

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
        device: what the networks are computed on, as `tell_device` says.
        rows: what the audit says of each file, the bad ones included.
        config: as the run folder's config.toml has it.
        missing: each "collection/split" of which there is no graph.
        usable: train graphs to learn from, by collection.
        unusable: the others, with the reason.
        sources: who ranks each collection.
    """

    recipe: Recipe
    out: Path
    files: list[GraphFile]
    costs: Costs = field(default_factory=Costs)
    device: dict[str, Any] = field(default_factory=dict)
    rows: list[AuditRow] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    usable: dict[str, list[GraphFile]] = field(default_factory=dict)
    unusable: list[Unusable] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Collection]:
        """The collections that are ranked, once their sources are chosen."""
        return [collection for collection in COLLECTIONS if collection.name in self.sources]

    def of(self, collection: Collection, split: str) -> list[GraphFile]:
        return [f for f in self.files if f.collection == collection and f.split == split]

    def members(self, collection: Collection) -> list[Member]:
        """Return the models that rank a collection, once its source is chosen."""
        source = self.sources[collection.name]
        return members_of(self.recipe, source.collection or collection, self.out, source)

    def scores(self, collection: Collection, split: str) -> dict[str, pl.DataFrame]:
        """Read what each member scored of a split."""
        names = [member.name for member in self.members(collection)]
        return {n: read_scores(scores_path(self.out, collection, n, split)) for n in names}

    def trainings(self) -> list[tuple[Collection, TrainJob]]:
        """List what is to be trained on what, once sources are chosen."""
        layouts = [file for c in LAYOUT_COLLECTIONS for file in self.usable.get(c.name, [])]
        usable = self.usable | {LAYOUTS.name: layouts}
        sources = [source.collection for source in self.sources.values() if source.collection]
        return [
            (place, TrainJob(own.model, self.recipe, usable[place.name], own.seed, own.folder))
            for place in dict.fromkeys(map(self.recipe.learned_as, sources))
            for own in members_of(self.recipe, place, self.out)
        ]

    def rankings(self) -> list[Ranking]:
        """List what is to be ranked by whom: the test and the valid split of each collection.

        The valid split is ranked without training as well: the report has a floor to compare with.
        """
        rankings = []
        for collection, split in product(self.ranked, SUBMISSION):
            members = {
                scores_path(self.out, collection, member.name, split): member
                for member in self.members(collection)
            }
            if split == "valid":
                floor = Member(FLOOR, 0, self.out / "models" / FLOOR, collection.kind)
                members[scores_path(self.out, collection, FLOOR, split)] = floor
            at_most = self.recipe.valid_configs if split == "valid" else 0
            if files := self.of(collection, split):
                models = [member.model for member in members.values()]
                rankings.append(Ranking(collection, split, files, members, models, at_most))
        return rankings

    def jobs(self, law: Law, *, trains: bool = True) -> list[Job]:
        """List what is left to do, once sources are chosen."""
        trainings = list(training_jobs(self.trainings(), law)) if trains else []
        trained = {job.name for job in trainings}
        return [*trainings, *ranking_jobs(self.rankings(), trained, law)]

    def choose_sources(self) -> None:
        """Find out which collections can be learned from, and who ranks those that cannot."""
        reasons: dict[str, str] = {}
        for collection in COLLECTIONS:
            usable, unusable = split_usable(self.of(collection, "train"))
            self.unusable += unusable
            if usable:
                self.usable[collection.name] = usable
            elif unusable:
                listed = "; ".join(f"{graph.file.name}: {graph.reason}" for graph in unusable[:3])
                reasons[collection.name] = f"no train graph to learn from ({listed})"
        for collection in COLLECTIONS:
            if not any(self.of(collection, split) for split in SUBMISSION):
                continue
            source = choose_source(collection, self.usable, reasons)
            self.sources[collection.name] = source
            if source.reason:
                taken = source.collection.name if source.collection else "a heuristic"
                log.info(f"{collection.name}: {source.reason}; ranked by {taken}")
