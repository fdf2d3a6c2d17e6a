"""The trainings of a run: which there are, and each done in its own folder."""

from collections.abc import Callable, Iterable

from data.tree import COLLECTIONS, LAYOUT_COLLECTIONS, Collection
from ensembles.members import Member, members_of
from ensembles.sources import choose_source
from models.shared_training import SHARED_FOLDER, shared_model
from models.train import train_model
from models.training.dataset import split_usable
from models.training.jobs import TrainJob
from pipeline.run.state import SUBMISSION, RunState

Training = tuple[Collection, Member]


def choose_sources(state: RunState, say: Callable[[str], None]) -> None:
    """Find out which collections can be learned from, and who ranks those that cannot."""
    for collection in COLLECTIONS:
        train = state.of(collection, "train")
        usable, unusable = split_usable(train)
        state.unusable += unusable
        if usable:
            state.usable[collection.name] = usable
        else:
            listed = "; ".join(f"{graph.file.name}: {graph.reason}" for graph in unusable[:3])
            state.reasons[collection.name] = (
                f"no train graph to learn from ({listed})" if unusable else "no train split"
            )
    for collection in COLLECTIONS:
        if not any(state.of(collection, split) for split in SUBMISSION):
            continue
        source = choose_source(collection, state.usable, state.reasons)
        state.sources[collection.name] = source
        if source.reason:
            taken = source.collection.name if source.collection else "a heuristic"
            say(f"{collection.name}: {source.reason}; ranked by {taken}")


def trainings_of(state: RunState) -> list[Training]:
    """List what a run trains, once its sources are chosen."""
    needed = {s.collection.name: s.collection for s in state.sources.values() if s.collection}
    return [
        (collection, member)
        for collection in needed.values()
        for member in members_of(state.recipe, collection, state.out)
    ]


def train(state: RunState, trainings: Iterable[Training]) -> None:
    """Train each, or go on with it, or skip what is done.

    Raises:
        PipelineError, UsageError, OutOfTime: as models.train.train_model.
    """
    layout = [file for c in LAYOUT_COLLECTIONS for file in state.usable.get(c.name, [])]
    shared_folder = state.out / "models" / SHARED_FOLDER
    for collection, member in trainings:
        job = TrainJob(
            model=member.model,
            recipe=state.recipe,
            files=state.usable[collection.name],
            seed=member.seed,
            run_dir=member.folder,
            progress=state.progress,
            deadline=state.deadline,
            shared=shared_model(state.recipe, member.model, member.seed, layout, shared_folder),
        )
        with state.stage(f"train {collection.name} {member.name}"):
            train_model(job, collection, resume=True)
