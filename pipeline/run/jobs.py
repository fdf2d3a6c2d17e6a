"""The jobs of a run: a training for each member, a ranking for each split of a collection.

A ranking waits for the training of its members. Nothing else waits.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path

from common.jobs.run_jobs import Job
from data.graph_store.prepare import file_weight
from data.tree import Collection, GraphFile
from ensembles.ensemble import BASELINE, Member
from ensembles.scores import scores_by_graph
from models.config.recipe import Recipe
from models.predict import sampled
from models.registry import TrainJob
from models.run_folder import is_done
from models.train import train_model

ROUNDS_PER_STEP = 10


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
            _training_name(training.run_dir),
            partial(train_model, resume=resume),
            (training, collection),
            weight=0 if is_done(training.run_dir) else n_steps(training.recipe, training.model),
            threads=training.recipe.n_threads,
            on_gpu=has_gpu and is_network(training.recipe, training.model),
            stage=f"train {collection.name} {training.run_dir.name}",
        )


def n_steps(recipe: Recipe, model: str) -> float:
    """Return the training steps of a model. Ten boosting rounds count as one step.

    Args:
        recipe: Recipe with the model.
        model: Name of the model.
    """
    if is_network(recipe, model):
        return float(getattr(recipe, model).training.steps)
    return getattr(getattr(recipe, model), "num_boost_round", 1) / ROUNDS_PER_STEP


def is_network(recipe: Recipe, model: str) -> bool:
    """Return whether a member is a network.

    Args:
        recipe: Recipe with the model.
        model: Name of the model, or of the baseline.
    """
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
    """Return the job that ranks the graphs of a split.

    Args:
        recipe: The recipe.
        files: Graphs of one split of a collection.
        members: The member of each score file that is missing.
        has_gpu: Whether networks are computed on a GPU.
        trained: Names of the training jobs. The job waits for those of its members.
    """
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
    """Write the score files of a split that are missing.

    Args:
        members: The member of each score file.
        files: Graphs of the split.
        at_most: Number of configs of a graph that are ranked, drawn by content. 0 = all.
    """
    scores_by_graph(
        {path: member.load for path, member in members.items()},
        files,
        what=f"predict {files[0].collection.name}/{files[0].split}",
        subsets=sampled(files, at_most),
    )
