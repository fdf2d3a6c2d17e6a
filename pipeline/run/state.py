"""The state of a run: its graphs, its members, its costs, and the jobs that are left."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, product
from pathlib import Path
from typing import Any

import polars as pl

from common.errors import PipelineError, UsageError
from common.files import read_bytes, write_text
from common.jobs.run_jobs import Cost, Job, measure_cost
from common.progress import log
from data.audit import AuditRow
from data.labels import Unusable, split_usable
from data.tree import COLLECTIONS, LAYOUT_COLLECTIONS, LAYOUTS, Collection, GraphFile
from ensembles.ensemble import BASELINE, FINAL, Member, Source, choose_source, members_of
from ensembles.scores import scores_path
from models.config.recipe import Recipe
from models.predict import read_scores
from models.registry import TrainJob
from pipeline.run.jobs import ranking_job, splits_of, training_jobs, trainings_of

# The digest and the place of each graph of a run, one graph on a line.
GRAPHS = "graphs.txt"
MAX_NAMES = 3
SUBMISSION = {"test": "submission.csv", "valid": "submission-valid.csv"}


@dataclass
class Costs:
    """The costs of the stages of this call.

    Attributes:
        peak_mib: Peak of resident memory in each stage. None if the system has no such number.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, float | None] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure a stage. Stages do not overlap, and the costs of a repeated stage are added."""
        with measure_cost() as costs:
            yield
        self.add(name, costs[0])

    def add(self, name: str, cost: Cost) -> None:
        """Add the cost of a piece of work to a stage."""
        self.seconds[name] = round(self.seconds.get(name, 0.0) + cost.seconds, 2)
        self.cpu_seconds[name] = round(self.cpu_seconds.get(name, 0.0) + cost.cpu_s, 2)
        peaks = [self.peak_mib.get(name), cost.peak_mib]
        self.peak_mib[name] = max((round(mib) for mib in peaks if mib is not None), default=None)


@dataclass
class RunState:
    """The state that the stages of one run share.

    Attributes:
        digests: Digest of each good file by its place, see `source_digests`.
    """

    recipe: Recipe
    out: Path
    files: list[GraphFile]
    config: dict[str, Any]
    missing: list[str]
    costs: Costs = field(default_factory=Costs)
    device: dict[str, Any] = field(default_factory=dict)
    rows: list[AuditRow] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    usable: dict[str, list[GraphFile]] = field(default_factory=dict)
    unusable: list[Unusable] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Collection]:
        """The collections that are ranked, once their sources are chosen."""
        return [collection for collection in COLLECTIONS if collection.name in self.sources]

    @property
    def has_gpu(self) -> bool:
        """Return whether networks are computed on a GPU."""
        return bool(self.device["device"] != "CPU")

    def check_graphs(self) -> None:
        """Reject a run folder in which a graph is missing, new, or has another content."""
        path = self.out / GRAPHS
        if not path.exists():
            return
        lines = read_bytes(path).decode(errors="replace").splitlines()
        before = {place: digest for digest, _, place in (line.partition(" ") for line in lines)}
        differing = [
            place
            for place in sorted({*before, *self.digests})
            if before.get(place) != self.digests.get(place)
        ]
        if differing:
            change = {place: "is missing now" for place in differing if place not in self.digests}
            change |= {place: "is new" for place in differing if place not in before}
            texts = (f"{place} {change.get(place, 'has changed')}" for place in differing)
            ending = f" and {len(differing) - MAX_NAMES} more" * (len(differing) > MAX_NAMES)
            raise UsageError(
                f"{self.out}: was begun with other graphs: {', '.join(islice(texts, MAX_NAMES))}"
                f"{ending}; bring the former graphs back, or choose another --out"
            )

    def write_graphs(self) -> None:
        """Write the list of graphs for `check_graphs`, unless the folder has one."""
        if not (self.out / GRAPHS).exists():
            lines = [f"{digest} {place}\n" for place, digest in self.digests.items()]
            write_text(self.out / GRAPHS, "".join(lines))

    def of(self, collection: Collection, split: str) -> list[GraphFile]:
        """Return the graphs of a split."""
        return [f for f in self.files if f.collection == collection and f.split == split]

    def members(self, collection: Collection, split: str = "valid") -> list[Member]:
        """Return the members that rank a split. Those of all splits have the same names."""
        source, final = self.sources[collection.name], split == "test"
        place = source.collection or collection
        return members_of(self.recipe, place, self.out, source, final=final)

    def scores(self, collection: Collection, split: str) -> dict[str, pl.DataFrame]:
        """Read the scores of each member."""
        names = [member.name for member in self.members(collection)]
        return {n: read_scores(scores_path(self.out, collection, n, split)) for n in names}

    def trainings(self) -> list[tuple[Collection, TrainJob]]:
        """List the trainings, each with its collection, once sources are chosen."""
        sources = [source.collection for source in self.sources.values() if source.collection]
        trainings = [
            training
            for place in dict.fromkeys(map(self.recipe.learned_as, sources))
            for training in self._trainings_on(place)
        ]
        folders = {training.run_dir for _, training in trainings}
        for place, training in trainings:
            if training.start and training.start not in folders:
                start = "/".join(training.start.parts[-2:])
                raise PipelineError(
                    f"{training.run_dir.name} of {place.name} starts from {start}, which has no "
                    "train graph to learn from, or not this seed"
                )
        return trainings

    def _trainings_on(self, place: Collection) -> Iterator[tuple[Collection, TrainJob]]:
        models, (usable, graphs) = self.recipe.of(place).models_of(place.kind), self._learned(place)
        return trainings_of(self.recipe, place, models, self._folder, usable=usable, graphs=graphs)

    def _folder(self, place: Collection, fit: Recipe, name: str) -> Path:
        return self.out / "models" / f"{place.slug}{FINAL * fit.is_final}" / name

    def _learned(self, place: Collection) -> tuple[list[GraphFile], list[GraphFile]]:
        """Return the usable graphs of a collection, or of all layouts, and all its graphs."""
        collections = LAYOUT_COLLECTIONS if place == LAYOUTS else (place,)
        usable = [file for part in collections for file in self.usable.get(part.name, ())]
        if "valid" in splits_of(self.recipe.of(place)):
            valid = [file for part in collections for file in self.of(part, "valid")]
            usable += split_usable(valid, self.recipe.of(place).leave_out)[0]
        return usable, [file for file in self.files if file.collection in collections]

    def jobs(self, *, trains: bool = True) -> list[Job]:
        """List the jobs that are left, once sources are chosen.

        The valid split is also ranked by the baseline, which the report compares with.
        """
        jobs = list(training_jobs(self.trainings(), has_gpu=self.has_gpu)) if trains else []
        trained = {job.name for job in jobs}
        for collection, split in product(self.ranked, SUBMISSION):
            members = {member.name: member for member in self.members(collection, split)}
            if split == "valid":
                baseline = Member(BASELINE, 0, self.out / "models" / BASELINE, collection.kind)
                members[BASELINE] = baseline
            paths = {n: scores_path(self.out, collection, n, split) for n in members}
            todo = {paths[n]: member for n, member in members.items() if not paths[n].exists()}
            files = self.of(collection, split)
            if files and todo:
                job = ranking_job(self.recipe, files, todo, has_gpu=self.has_gpu, trained=trained)
                jobs.append(job)
        return jobs

    def choose_sources(self) -> None:
        """Find the collections with usable train graphs, and models for the others."""
        reasons: dict[str, str] = {}
        for collection in COLLECTIONS:
            usable, unusable = split_usable(self.of(collection, "train"), self.recipe.leave_out)
            self.unusable += unusable
            if usable:
                self.usable[collection.name] = usable
            elif unusable:
                examples = "; ".join(f"{graph.file.name}: {graph.reason}" for graph in unusable[:3])
                reasons[collection.name] = f"no train graph to learn from ({examples})"
        for collection in COLLECTIONS:
            if not any(self.of(collection, split) for split in SUBMISSION):
                continue
            source = choose_source(collection, self.usable, reasons)
            self.sources[collection.name] = source
            if source.reason:
                ranker = source.collection.name if source.collection else "a baseline"
                log.info(f"{collection.name}: {source.reason}; ranked by {ranker}")
