"""The jobs of a run: a training for each member, a ranking for each block of graphs.

A ranking waits for the training of its members. Nothing else waits. `train_collection` and
`predict_split` do one stage alone.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from common.errors import PipelineError, UsageError
from common.files import check_writable
from common.jobs.run_jobs import Cost, Job, measured
from common.jobs.workers import HERE, Workers
from common.progress import log
from data.audit import AuditRow
from data.graph_store.prepare import blocks_of, file_weight, stored_graphs
from data.labels import Unusable, split_usable
from data.tree import (
    COLLECTIONS,
    LAYOUT_COLLECTIONS,
    LAYOUTS,
    SPLITS,
    Collection,
    GraphFile,
    collection_named,
)
from ensembles.ensemble import (
    BASELINE,
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
from models.run_folder import CONFIG, check_free, is_done, models_of, read_config
from models.train import check_device, check_packages, train_model
from models.training.device import gpu_here, tell_device
from pipeline.run.trackers import logged_to

SUBMISSION = {"test": "submission.csv", "valid": "submission-valid.csv"}
ROUNDS_PER_STEP = 10


def as_begun(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe by the name that a run folder knows it by, where nothing else differs."""
    if not (folder / CONFIG).is_file():
        return recipe
    table = read_config(folder).get("recipe") or {}
    named = recipe.model_copy(update={"name": table.get("name", recipe.name)})
    return named if named.model_dump(mode="json") == table else recipe


def training_jobs(
    trainings: Sequence[tuple[Collection, TrainJob]], *, has_gpu: bool, resume: bool = True
) -> Iterator[Job]:
    """Yield a job for each training.

    Args:
        trainings: Trainings, each with the collection that it learns from.
        has_gpu: Whether networks are computed on a GPU.
        resume: Whether a folder with a checkpoint is resumed.
    """
    for collection, training in trainings:
        yield Job(
            training_name(training.run_dir),
            partial(train_model, resume=resume),
            (training, collection),
            weight=0 if is_done(training.run_dir) else n_steps(training.recipe, training.model),
            threads=training.recipe.n_threads,
            on_gpu=has_gpu and is_network(training.recipe, training.model),
            stage=f"train {collection.name} {training.run_dir.name}",
        )


def n_steps(recipe: Recipe, model: str) -> float:
    """Return the training steps of a network. Ten boosting rounds count as one step."""
    if is_network(recipe, model):
        return float(getattr(recipe, model).training.steps)
    return getattr(getattr(recipe, model), "num_boost_round", 1) / ROUNDS_PER_STEP


def is_network(recipe: Recipe, model: str) -> bool:
    return model != BASELINE and recipe.training_of(model) is not None


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
        models: the members' models.
        at_most: so many configs of a graph are ranked, drawn by content; 0 = all.
    """

    collection: Collection
    split: str
    files: Sequence[GraphFile]
    members: Mapping[Path, Member | WholeRun]
    models: Sequence[str]
    at_most: int

    def parts(self) -> "list[Ranking]":
        """Cut the rest of this ranking into blocks of files, with score files of their own.

        The parts are for members without a score file of the whole.
        """
        members = {path: member for path, member in self.members.items() if not path.exists()}
        blocks = list(blocks_of(self.files))
        if len(blocks) == 1:
            return [replace(self, members=members)]
        return [
            replace(
                self,
                files=block,
                members={
                    _part_of(path, f"{number}-of-{len(blocks)}"): member
                    for path, member in members.items()
                },
            )
            for number, block in enumerate(blocks, start=1)
        ]

    def join(self) -> None:
        """Write the score files from those of the parts, then remove all parts."""
        parts = self.parts()
        for number, path in enumerate(path for path in self.members if not path.exists()):
            own = [list(part.members)[number] for part in parts]
            write_scores(path, pl.concat(map(read_scores, own)), self.collection.name)
        for path in self.members:
            for left in path.parent.glob(f"{path.stem}.*{path.suffix}"):
                left.unlink()


def _part_of(path: Path, which: str) -> Path:
    return path.with_name(f"{path.stem}.part-{which}{path.suffix}")


def ranking_jobs(
    rankings: Sequence[Ranking], recipe: Recipe, trained: Set[str] = frozenset(), *, has_gpu: bool
) -> Iterator[Job]:
    """Yield the jobs of rankings that are left.

    Args:
        rankings: Rankings of a run.
        recipe: Recipe of the run.
        trained: Names of the training jobs. A ranking waits for those of its members.
        has_gpu: Whether networks are computed on a GPU.
    """
    for ranking in rankings:
        name = f"predict {ranking.collection.name}"
        parts = ranking.parts()
        for number, part in enumerate(parts, start=1):
            members = part.members.values()
            if all(path.exists() for path in part.members):
                continue
            yield Job(
                f"{name}/{part.split}" + (f" {number} of {len(parts)}" if len(parts) > 1 else ""),
                rank,
                (part,),
                weight=len(members) * file_weight(part.files),
                threads=recipe.n_threads,
                on_gpu=has_gpu and any(is_network(recipe, model) for model in ranking.models),
                after=frozenset(training_name(m.folder) for m in members).intersection(trained),
                stage=name,
            )


def uses_gpu(device: Mapping[str, Any]) -> bool:
    """Return whether networks are computed on a GPU, `device` as from `tell_device`."""
    return bool(device["device"] != "CPU")


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

        The baseline ranks the valid split as well: the report compares with it.
        """
        rankings = []
        for collection, split in product(self.ranked, SUBMISSION):
            members = {
                scores_path(self.out, collection, member.name, split): member
                for member in self.members(collection)
            }
            if split == "valid":
                baseline = Member(BASELINE, 0, self.out / "models" / BASELINE, collection.kind)
                members[scores_path(self.out, collection, BASELINE, split)] = baseline
            at_most = self.recipe.valid_configs if split == "valid" else 0
            if files := self.of(collection, split):
                models = [member.model for member in members.values()]
                rankings.append(Ranking(collection, split, files, members, models, at_most))
        return rankings

    def jobs(self, *, trains: bool = True) -> list[Job]:
        """List the jobs that are left, once sources are chosen."""
        has_gpu = uses_gpu(self.device)
        trainings = list(training_jobs(self.trainings(), has_gpu=has_gpu)) if trains else []
        trained = {job.name for job in trainings}
        return [*trainings, *ranking_jobs(self.rankings(), self.recipe, trained, has_gpu=has_gpu)]

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
                taken = source.collection.name if source.collection else "a baseline"
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
    files = stored_graphs(data_dir, collections=learned, splits=("train",), workers=workers)
    usable, unusable = split_usable(files)
    for item in unusable:
        log.info(f"left out of training: {item.file.submission_id}: {item.reason}")
    if not usable:
        raise PipelineError(f"{data_dir}: {place.name} has no train graph to learn from")
    trainings = [
        (place, TrainJob(name, recipe, usable, seed, folder))
        for (name, seed), folder in zip(product(chosen, recipe.seeds), folders, strict=True)
    ]
    jobs = list(training_jobs(trainings, has_gpu=uses_gpu(device), resume=resume))
    with logged_to(trackers, out, recipe.model_dump(mode="json")):
        workers.do(jobs, out)
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
    files = stored_graphs(data_dir, collections=(target,), splits=(split,), workers=workers)
    at_most = recipe.valid_configs if split == "valid" else 0
    has_gpu = uses_gpu(tell_device(recipe, gpu_here()))
    parts = path.with_name(f".{path.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)  # of a call that was killed, perhaps on other data
    member = {parts / path.name: WholeRun(run, wanted, tuple(trust))}
    ranking = Ranking(target, split, files, member, models, at_most)
    try:
        workers.do(list(ranking_jobs([ranking], recipe, has_gpu=has_gpu)), path.parent)
        ranking.join()
        (parts / path.name).replace(path)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return path, len(files)
