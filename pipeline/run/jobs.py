"""What a run has to do as jobs: a training per member, a ranking per stretch of graphs.

A ranking begins when the models that it takes are trained; nothing else waits for anything. Two
stages of a run are done on their own too: one collection is trained, or one split predicted.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise, product
from math import ceil
from pathlib import Path
from typing import Any

import polars as pl

from common.atomic import check_writable
from common.errors import PipelineError, UsageError
from common.progress import log
from data.audit import AuditRow
from data.graph_store.prepare import stored_graphs
from data.official.published import PartSize
from data.tree import (
    COLLECTIONS,
    LAYOUT_COLLECTIONS,
    LAYOUTS,
    SPLITS,
    Collection,
    GraphFile,
    collection_named,
    find_graphs,
)
from ensembles.ensemble import (
    FLOOR,
    HEURISTIC,
    Member,
    Source,
    choose_source,
    load_ranker,
    members_of,
    ranked_by,
)
from ensembles.scores import scores_by_graph, scores_path
from models.config.recipe import Recipe
from models.predict import read_scores, sampled, write_scores
from models.registry import Ranker, TrainJob, model_entry
from models.run_folder import CONFIG, check_free, is_done, read_config, read_recipe
from models.train import check_device, check_packages, train_model
from models.training.dataset import Unusable, split_usable
from models.training.device import gpu_here, tell_device
from pipeline.jobs.run_jobs import Cost, Job, measured
from pipeline.jobs.workers import HERE, Workers, packing
from pipeline.planning.cards import CARDS, Machine
from pipeline.planning.plan import (
    as_ranked,
    learned_parts,
    mean_size,
    part_size,
    ranking_s,
    training_s,
)
from pipeline.run.trackers import logged_to

SUBMISSION = {"test": "submission.csv", "valid": "submission-valid.csv"}
UNKNOWN_S = 60.0  # a training of a model whose cost is not known
BLOCK_S = 600.0  # what is ranked as one job, about


def as_begun(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe by the name that a run folder knows it by, where nothing else differs."""
    if not (folder / CONFIG).is_file():
        return recipe
    table = read_config(folder).get("recipe") or {}
    named = recipe.model_copy(update={"name": table.get("name", recipe.name)})
    return named if named.model_dump(mode="json") == table else recipe


def part_sizes(rows: Sequence[AuditRow]) -> list[PartSize]:
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
    for collection, training in trainings:
        yield Job(
            training_name(training.run_dir),
            partial(train_model, resume=resume),
            (training, collection),
            seconds=law.left_s(collection, training.model, training.run_dir),
            threads=training.recipe.n_threads,
            on_gpu=law.takes_gpu(training.model),
            stage=f"train {collection.name} {training.run_dir.name}",
        )


def training_name(folder: Path) -> str:
    return f"train {folder.parent.name}/{folder.name}"


@dataclass(frozen=True)
class WholeRun:
    """The ensemble of a run folder, as what makes a score file; `wanted` None = a model's own."""

    folder: Path
    wanted: Collection | None
    trust: tuple[str, ...] = ()  # custom models that may be imported

    def load(self) -> Ranker:
        wanted = self.wanted.name if self.wanted else None
        return load_ranker(self.folder, collection=wanted, trust=self.trust)


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
            write_scores(path, pl.concat(map(read_scores, own)), self.collection.name)
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
        source = self.sources[collection.name]
        return members_of(self.recipe, source.collection or collection, self.out, source)

    def scores(self, collection: Collection, split: str) -> dict[str, pl.DataFrame]:
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


def train_collection(
    data_dir: Path,
    collection: Collection,
    recipe: Recipe,
    out: Path,
    *,
    model: str | None,
    resume: bool,
    workers: Workers = HERE,
    trackers: Sequence[str] = (),
) -> list[Path]:
    """Train a recipe's models, with each of its seeds, on one collection.

    With the recipe's `layout.together`, a layout collection's are trained on all of them.

    Raises:
        UsageError: no such model, a folder holds another run, or there is no GPU.
        PipelineError: nothing to learn from, or a damaged file.
        OutOfTime: the time is over; resumed, it goes on where it stopped.
    """
    names = recipe.models_of(collection.kind)
    if model is not None and model not in names:
        raise UsageError(f"--model {model}: recipe {recipe.name} has {', '.join(names)}")
    chosen = names if model is None else (model,)
    workers.check()
    check_packages()
    for name in chosen:
        check_device(recipe, name)
    device = tell_device(recipe, gpu_here())
    recipe = as_begun(recipe, out / f"{chosen[0]}-seed{recipe.seeds[0]}")
    folders = [out / f"{name}-seed{seed}" for name, seed in product(chosen, recipe.seeds)]
    for folder in folders:
        check_free(folder, {}, resume=resume)
    check_writable(folders[0] / CONFIG)
    place = recipe.learned_as(collection)
    learned = LAYOUT_COLLECTIONS if place == LAYOUTS else (collection,)
    files = stored_graphs(data_dir, collections=learned, splits=("train",), pack=packing(workers))
    usable, unusable = split_usable(files)
    for item in unusable:
        log.info(f"left out of training: {item.file.submission_id}: {item.reason}")
    if not usable:
        raise PipelineError(f"{data_dir}: {place.name} has no train graph to learn from")
    trainings = [
        (place, TrainJob(name, recipe, usable, seed, folder))
        for (name, seed), folder in zip(product(chosen, recipe.seeds), folders, strict=True)
    ]
    sources = find_graphs(data_dir, collections=learned, splits=("train",))
    law = Law(recipe, [part_size(sources)], machine_with(device))
    with logged_to(trackers, out, recipe.model_dump(mode="json")):
        workers.do(list(training_jobs(trainings, law, resume=resume)), out)
    return folders


def predict_split(
    data_dir: Path,
    run: Path,
    *,
    split: str,
    out: Path | None,
    collection: str | None,
    workers: Workers = HERE,
    trust: Sequence[str] = (),
) -> tuple[Path, int]:
    """Score the configs of a split with a run's models: of valid as its recipe says, else all.

    Args:
        out: parquet file; RUN/scores-SPLIT.parquet if None.
        collection: which to score; None takes the model's own.
        trust: Custom models that may be imported, as "package.module:Class".

    Raises:
        UsageError: A custom model that is not in `trust`.
        PipelineError: no such split, a damaged file, or models of another kind.
    """
    if split not in SPLITS:
        raise UsageError(f"--split {split}: expected one of {', '.join(SPLITS)}")
    wanted = collection_named(collection) if collection else None
    own = ranked_by(run, wanted)
    target = wanted or own
    path = out or run / f"scores-{split}.parquet"
    workers.check()
    check_writable(path)
    recipe, models = models_of(run, target.kind, trust)
    for model in models:
        model_entry(recipe, model)
    files = stored_graphs(data_dir, collections=(target,), splits=(split,), pack=packing(workers))
    at_most = recipe.valid_configs if split == "valid" else 0
    sources = find_graphs(data_dir, collections=(target,), splits=(split,))
    law = Law(recipe, [part_size(sources)], machine_with(tell_device(recipe, gpu_here())))
    parts = path.with_name(f".{path.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)  # of a call that was killed, perhaps on other data
    member = {parts / path.name: WholeRun(run, wanted, tuple(trust))}
    ranking = Ranking(target, split, files, member, models, at_most)
    try:
        workers.do(list(ranking_jobs([ranking], set(), law)), path.parent)
        ranking.join(law)
        (parts / path.name).replace(path)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return path, len(files)


def models_of(run: Path, kind: str, trust: Sequence[str] = ()) -> tuple[Recipe, Sequence[str]]:
    """Return a run's recipe, and the model of each of its members that rank configs of a kind."""
    config, recipe = read_config(run), read_recipe(run, trust)
    every = recipe.models_of(kind) * len(recipe.seeds)
    return recipe, (config["model"],) if "model" in config else every
