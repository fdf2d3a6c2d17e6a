"""The jobs of a run: a training for each member, a ranking for each split of a collection.

A ranking waits for the training of its members. Nothing else waits.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
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
    """Return the name of the job that trains into a folder."""
    return f"train {folder.parent.name}/{folder.name}"


@dataclass(frozen=True)
class Ranking:
    """Members that rank the graphs of a collection's split, each into a score file.

    Attributes:
        collection: The collection.
        split: The split.
        files: Its graphs.
        members: The member of each score file.
        at_most: Number of configs of a graph that are ranked, drawn by content. 0 = all.
        on_gpu: Whether a member is a network on a GPU.
    """

    collection: Collection
    split: str
    files: Sequence[GraphFile]
    members: Mapping[Path, Member]
    at_most: int
    on_gpu: bool


def ranking_jobs(
    rankings: Sequence[Ranking], *, threads: int, trained: Set[str] = frozenset()
) -> Iterator[Job]:
    """Yield a job for each ranking that is left.

    Args:
        rankings: Rankings of a run.
        threads: Threads of a job.
        trained: Names of the training jobs. A ranking waits for those of its members.
    """
    for ranking in rankings:
        members = [member for path, member in ranking.members.items() if not path.exists()]
        if members:
            name = f"predict {ranking.collection.name}"
            yield Job(
                f"{name}/{ranking.split}",
                rank,
                (ranking,),
                weight=len(members) * file_weight(ranking.files),
                threads=threads,
                on_gpu=ranking.on_gpu,
                after=frozenset(_training_name(m.folder) for m in members).intersection(trained),
                stage=name,
            )


def rank(ranking: Ranking) -> None:
    """Write the score files of a ranking that are missing.

    Args:
        ranking: The ranking.
    """
    scores_by_graph(
        {path: member.load for path, member in ranking.members.items()},
        ranking.files,
        what=f"predict {ranking.collection.name}/{ranking.split}",
        subsets=sampled(ranking.files, ranking.at_most),
    )
