"""The jobs of a run: a training for each member, a ranking for each split of a collection.

A ranking waits for the training of its members. Nothing else waits.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path

import numpy as np

from common.errors import UsageError, did_you_mean
from common.jobs.run_jobs import WORKER_BYTES, Job
from data.graph_store.prepare import file_bytes, file_weight
from data.graph_store.stored_graph import read_graph
from data.tree import Collection, GraphFile, collection_named
from ensembles.ensemble import BASELINE, Member
from ensembles.scores import scores_by_graph
from models.config.recipe import Recipe
from models.graph_task import faults_of
from models.predict import sampled
from models.registry import TrainJob, model_entry
from models.run_folder import is_done
from models.train import train_model

ROUNDS_PER_STEP = 10


def check_left_out(
    recipe: Recipe, files: Iterable[GraphFile], collections: Iterable[Collection]
) -> None:
    """Check that the graphs of `leave_out` exist."""
    splits, starts = splits_of(recipe), tuple(f"{place.name}:" for place in collections)
    names = {file.submission_id for file in files if file.split in splits}
    for name in recipe.leave_out:
        if name.startswith(starts) and name not in names:
            near = did_you_mean(name, names)
            raise UsageError(f"leave_out: no graph '{name}' in {' or '.join(splits)}{near}")


def training_jobs(
    trainings: Sequence[tuple[Collection, TrainJob]], *, has_gpu: bool, resume: bool = True
) -> Iterator[Job]:
    """Yield a job for each training."""
    folders = {training.run_dir for _, training in trainings}
    for collection, training in trainings:
        starts = [folder for folder in [training.start] if folder in folders]
        ending = f" on {' and '.join(training.recipe.fit_on)}" * training.recipe.is_final
        yield Job(
            _training_name(training.run_dir),
            partial(train_model, resume=resume),
            (training, collection),
            weight=0 if is_done(training.run_dir) else n_steps(training.recipe, training.model),
            threads=training.recipe.n_threads,
            on_gpu=has_gpu and is_network(training.recipe, training.model),
            after=frozenset(_training_name(folder) for folder in starts if folder),
            stage=f"train {collection.name} {training.run_dir.name}{ending}",
            n_bytes=_training_bytes(training, has_gpu=has_gpu),
        )


def _training_bytes(training: TrainJob, *, has_gpu: bool) -> int:
    """Return the memory of a training by its largest graph, as `plan` computes it."""
    recipe, model = training.recipe, training.model
    largest = max(training.files, key=lambda file: file_bytes(file.path), default=None)
    if not (largest and largest.path.is_file() and is_network(recipe, model)):
        return WORKER_BYTES
    from pipeline.planning.costs import CARDS, StepCosts, StepTimes
    from pipeline.planning.plan import Graphs, network_mib

    graph = read_graph(largest)
    sizes = Graphs(
        largest.collection.name, "train", np.array([graph.n_nodes]), np.array([graph.n_configs])
    )
    costs = StepCosts(CARDS["t4"] if has_gpu else None, StepTimes(card="", steps=()))
    _, process_mib = network_mib(costs, recipe, model, sizes, n_graphs=len(training.files))
    return round(process_mib) << 20


def splits_of(recipe: Recipe, models: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the splits that some models of a recipe learn from, or all its models."""
    fits = (recipe.fits(model)[-1] for model in models or recipe.all_models)
    return max((fit.fit_on for fit in fits), key=len)


def trainings_of(
    recipe: Recipe,
    place: Collection,
    models: Iterable[str],
    folder_of: Callable[[Collection, Recipe, str], Path],
    *,
    usable: Sequence[GraphFile] = (),
    graphs: Sequence[GraphFile] = (),
) -> Iterator[tuple[Collection, TrainJob]]:
    """Yield the trainings of a collection's models: by model, then by fit, then by seed.

    Args:
        folder_of: Function that returns the run folder of a collection's member in a fit.
        usable: Graphs of the train and valid splits to learn from.
        graphs: All graphs of the collection, for models that read the graphs that they will rank.
    """
    settings = recipe.of(place)
    for model in models:
        fits = settings.fits(model)
        for fit in fits:
            files = [file for file in usable if file.split in fit.fit_on]
            read_files = _ranked_files(fits, fit, model, graphs)
            start = start_of(fit, model, place)
            for seed in settings.seeds_of(model):
                name = f"{model}-seed{seed}"
                folder = folder_of(place, fit, name)
                begins_from = folder_of(start, fit, name) if start else None
                yield place, TrainJob(model, fit, files, seed, folder, begins_from, read_files)


def _ranked_files(
    fits: Sequence[Recipe], fit: Recipe, model: str, files: Iterable[GraphFile]
) -> list[GraphFile]:
    """Return the graphs that a training's model will rank, if its training reads them."""
    if not model_entry(fit, model).reads_ranked:
        return []
    of = {"valid": fits[0].fit_on, "test": fits[-1].fit_on}
    return [file for file in files if of.get(file.split) == fit.fit_on]


def start_of(recipe: Recipe, model: str, place: Collection) -> Collection | None:
    """Return the collection whose weights a model starts from, or None."""
    training = recipe.of(place).training_of(model)
    return collection_named(training.start_from) if training and training.start_from else None


def check_starts(
    recipe: Recipe, places: Iterable[Collection], sources: Container[Collection]
) -> None:
    """Check `training.start_from` of all models before any work."""
    for place in places:
        for model in recipe.models_of(place.kind):
            chain = [place]
            while start := start_of(recipe, model, chain[-1]):
                fault = f"{model}.training.start_from = '{start.name}' of {chain[-1].name}: "
                if start in chain:
                    raise UsageError(f"{fault}{model} would start from itself")
                if start not in sources:
                    raise UsageError(f"{fault}that collection has no train graph here")
                shapes, start_shapes = (_shapes(recipe.of(c), model) for c in (chain[-1], start))
                for name in sorted(shapes.keys() | start_shapes.keys()):
                    if shapes.get(name) != start_shapes.get(name):
                        sizes = f"{start_shapes.get(name)}, not {shapes.get(name)}"
                        raise UsageError(f"{fault}its weight '{name}' is {sizes}")
                chain.append(start)


def _shapes(recipe: Recipe, model: str) -> dict[str, tuple[int, ...]]:
    network_class = model_entry(recipe, model).network_class
    with faults_of(network_class):
        network = network_class(getattr(recipe, model))
    return {name: tuple(value.shape) for name, value in network.named_parameters()}


def n_steps(recipe: Recipe, model: str) -> float:
    """Return the training steps of a model. Ten boosting rounds count as one step."""
    if is_network(recipe, model):
        return float(getattr(recipe, model).training.steps)
    return getattr(getattr(recipe, model), "num_boost_round", 1) / ROUNDS_PER_STEP


def is_network(recipe: Recipe, model: str) -> bool:
    """Return whether a member is a network."""
    return model != BASELINE and recipe.training_of(model) is not None


def _training_name(folder: Path) -> str:
    return f"train {folder.parent.name}/{folder.name}"


def ranking_job(
    recipe: Recipe,
    files: Sequence[GraphFile],
    members: Mapping[Path, Member],
    *,
    has_gpu: bool,
    trained: Set[str],
) -> Job:
    """Return the job that ranks the graphs of a split, after the trainings of its members."""
    name, split = f"predict {files[0].collection.name}", files[0].split
    return Job(
        f"{name}/{split}",
        rank,
        (members, files, recipe.valid_configs if split == "valid" else 0),
        weight=len(members) * file_weight(files),
        threads=recipe.n_threads,
        on_gpu=has_gpu and any(is_network(recipe, member.model) for member in members.values()),
        after=frozenset(_training_name(m.folder) for m in members.values()).intersection(trained),
        stage=name,
    )


def rank(members: Mapping[Path, Member], files: Sequence[GraphFile], at_most: int) -> None:
    """Write the missing score files of a split, of at most some configs of a graph. 0 = all."""
    scores_by_graph(
        {path: member.load for path, member in members.items()},
        files,
        what=f"predict {files[0].collection.name}/{files[0].split}",
        subsets=sampled(files, at_most),
    )
