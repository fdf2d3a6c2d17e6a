"""What a run has to do as jobs: a training per member, a ranking per stretch of graphs.

A ranking begins when the models that it takes are trained; nothing else waits for anything.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl

from common.checksums import write_table
from data.audit.rows import AuditRow
from data.official.published import PartSize
from data.tree import Collection, GraphFile, collection_named
from ensembles.ensemble import load_ranker
from ensembles.members import FLOOR, HEURISTIC, Member
from ensembles.scores import begun_path, scores_by_graph
from models.config.recipe import Recipe
from models.predict import read_scores, sampled
from models.run_folder import is_done
from models.train import train_model
from models.training.jobs import Ranker, TrainJob
from pipeline.jobs.job import Job
from pipeline.planning.cards import CARDS
from pipeline.planning.costs import Machine, as_ranked, learned_parts, ranking_s, training_s
from pipeline.planning.plan import mean_size

UNKNOWN_S = 60.0  # a training of a model whose cost is not known
BLOCK_S = 600.0  # what is ranked as one job, about


def part_sizes(rows: Sequence[AuditRow]) -> list[PartSize]:
    """Return how large the good graphs of each split are."""
    good = (row for row in rows if not row.error)
    parts = groupby(good, lambda row: (row.file.collection, row.file.split))
    return [
        mean_size(
            own[0].file,
            [(row.n_nodes, row.n_edges, row.n_configs) for row in own],
            repeated=1 - sum(row.n_distinct for row in own) / sum(row.n_configs for row in own),
        )
        for own in (list(part) for _, part in parts)
    ]


def machine_with(device: Mapping[str, Any]) -> Machine:
    """Return what times are counted for: `device` is as `tell_device` says."""
    return Machine(card=None if device["device"] == "CPU" else CARDS["t4"])


class Law:
    """About how long trainings and rankings take, by what `plan` counts.

    Args:
        parts: of the graphs that are learned from and ranked.
    """

    def __init__(self, recipe: Recipe, parts: Sequence[PartSize], machine: Machine) -> None:
        self.recipe, self.machine = recipe, machine
        self._parts = {(part.collection, part.split): as_ranked(recipe, part) for part in parts}
        for part in learned_parts(recipe, parts):
            self._parts[recipe.learned_as(collection_named(part.collection)).name, "train"] = part

    def left_s(self, collection: Collection, model: str, folder: Path) -> float:
        """Return about how long a training takes into a folder; nothing where it is done."""
        if is_done(folder):
            return 0.0
        return self._counted(training_s, collection, "train", model) or UNKNOWN_S

    def ranking_s(self, collection: Collection, split: str, model: str) -> float:
        """Return about how long a model takes to rank a split; 0 if that is not known."""
        part = self._parts.get((collection.name, split))
        return part.graphs * self._counted(ranking_s, collection, split, model) if part else 0.0

    def _counted(
        self, seconds: Callable[..., float], collection: Collection, split: str, model: str
    ) -> float:
        part = self._parts.get((collection.name, split))
        try:
            return seconds(self.recipe, model, part, self.machine) if part else 0.0
        except Exception:  # a class of one's own may not bear to be counted: jobs are done anyhow
            return 0.0

    def takes_gpu(self, model: str) -> bool:
        is_network = model not in (HEURISTIC, FLOOR) and self.recipe.training_of(model) is not None
        return is_network and self.machine.card is not None


def training_jobs(
    trainings: Sequence[tuple[Collection, TrainJob]], law: Law, *, resume: bool = True
) -> Iterator[Job]:
    """Return a job for each training."""
    for collection, training in trainings:
        yield Job(
            training_name(training.run_dir),
            _train,
            (training, collection, resume),
            seconds=law.left_s(collection, training.model, training.run_dir),
            threads=training.recipe.n_threads,
            on_gpu=law.takes_gpu(training.model),
            reads=tuple(file.path for file in training.files),
            makes=(training.run_dir,),
            stage=f"train {collection.name} {training.run_dir.name}",
        )


def training_name(folder: Path) -> str:
    return f"train {folder.parent.name}/{folder.name}"


def _train(training: TrainJob, collection: Collection, resume: bool) -> None:
    train_model(training, collection, resume=resume)


@dataclass(frozen=True)
class WholeRun:
    """The ensemble of a run folder, as what makes a score file; `wanted` None = a model's own."""

    folder: Path
    wanted: Collection | None

    def load(self) -> Ranker:
        return load_ranker(self.folder, collection=self.wanted.name if self.wanted else None)


@dataclass(frozen=True)
class Ranking:
    """Which members shall rank which graphs of a collection's split, into which score files.

    Attributes:
        members: by score file.
        models: whose cost it has.
        at_most: so many configs of a graph are ranked, drawn by content; 0 = all.
    """

    collection: Collection
    split: str
    files: Sequence[GraphFile]
    members: Mapping[Path, Member | WholeRun]
    models: Sequence[str]
    at_most: int

    def seconds(self, law: Law) -> float:
        return sum(law.ranking_s(self.collection, self.split, model) for model in self.models)

    def parts(self, law: Law) -> "list[Ranking]":
        """Cut what is left of this into stretches of about BLOCK_S, with score files of their own.

        These are for the members that have no score file of the whole.
        """
        members = {path: member for path, member in self.members.items() if not path.exists()}
        n = min(len(self.files), max(1, ceil(self.seconds(law) / BLOCK_S)))
        if n == 1:
            return [replace(self, members=members)]
        cuts = [len(self.files) * number // n for number in range(n + 1)]
        return [
            replace(
                self,
                files=self.files[start:end],
                members={_part_of(path, f"{number}-of-{n}"): m for path, m in members.items()},
            )
            for number, (start, end) in enumerate(pairwise(cuts), start=1)
        ]

    def join(self, law: Law) -> None:
        """Make the score files of those of the parts, once these are there; sweep up all parts."""
        parts = self.parts(law)
        for number, path in enumerate(path for path in self.members if not path.exists()):
            own = [list(part.members)[number] for part in parts]
            write_table(path, pl.concat(map(read_scores, own)))
        for path in self.members:
            for left in path.parent.glob(f"{path.stem}.*{path.suffix}"):
                left.unlink()


def _part_of(path: Path, which: str) -> Path:
    return path.with_name(f"{path.stem}.part-{which}{path.suffix}")


def ranking_jobs(rankings: Sequence[Ranking], trained: Set[str], law: Law) -> Iterator[Job]:
    """Return the jobs of rankings that are not there yet.

    Args:
        trained: names of the jobs that train, of which a ranking waits for its own.
    """
    for ranking in rankings:
        name = f"predict {ranking.collection.name}"
        parts = ranking.parts(law)
        for number, part in enumerate(parts, start=1):
            members = part.members.values()
            if all(path.exists() for path in part.members):
                continue
            yield Job(
                f"{name}/{part.split}" + (f" {number} of {len(parts)}" if len(parts) > 1 else ""),
                rank,
                (part,),
                seconds=ranking.seconds(law) * len(part.files) / len(ranking.files),
                threads=law.recipe.n_threads,
                on_gpu=any(law.takes_gpu(model) for model in ranking.models),
                after=frozenset(training_name(m.folder) for m in members).intersection(trained),
                reads=(*(f.path for f in part.files), *(m.folder for m in members)),
                makes=(*part.members, *map(begun_path, part.members)),
                stage=name,
            )


def rank(ranking: Ranking) -> None:
    """Make the score files of a ranking, or the rest of them."""
    scores_by_graph(
        {path: member.load for path, member in ranking.members.items()},
        ranking.files,
        what=f"predict {ranking.collection.name}/{ranking.split}",
        subsets=sampled(ranking.files, ranking.at_most),
    )
