"""The stage of a run that scores with every member and blends, each score file made once."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from data.tree import COLLECTIONS, Collection, GraphFile
from ensembles.blend import mix
from ensembles.choice.in_run import choose_in_run, written_mixing
from ensembles.members import Member, members_of
from ensembles.score_files import scores_path
from ensembles.scores import scores_by_graph
from models.predict import cached_scores, predict
from models.trees.baselines import FLOORS

if TYPE_CHECKING:
    from pipeline.run.state import RunState


def predict_and_blend(
    state: "RunState", splits: Iterable[str], say: Callable[[str], None]
) -> dict[str, list[tuple[Collection, pl.DataFrame]]]:
    """Score `splits`; by split, the blended scores of each collection.

    Raises:
        PipelineError: a damaged file, or scores that are not finite.
        OutOfTime: the run's deadline is over.
    """
    blended: dict[str, list[tuple[Collection, pl.DataFrame]]] = {split: [] for split in splits}
    for collection in COLLECTIONS:
        source = state.sources.get(collection.name)
        if source is None:
            continue
        members = members_of(state.recipe, source.collection or collection, state.out, source)
        _choose_blend(state, collection, members, say)
        for split, done in blended.items():
            files = state.of(collection, split)
            if files:
                with state.stage(f"predict {collection.name}"):
                    scores = _blended_scores(state, collection, members, files)
                done.append((collection, scores))
                if split == "valid":
                    with state.stage("rank without training"):
                        _score_floor(state, collection, files)
    return blended


def _score_floor(state: "RunState", collection: Collection, files: Sequence[GraphFile]) -> None:
    """Score the valid split without training, so that the report has a floor to compare with."""
    floor = partial(predict, FLOORS[collection.kind], files)
    cached_scores(scores_path(state.out, collection, "floor", "valid"), floor)


def _choose_blend(
    state: "RunState",
    collection: Collection,
    members: Sequence[Member],
    say: Callable[[str], None],
) -> None:
    """Choose the collection's blend by its valid split, if the recipe asks for it."""
    blending, files = state.recipe.blend, state.of(collection, "valid")
    if not blending.choose or not files:
        return
    with state.stage(f"predict {collection.name}"):
        tables = _member_scores(state, collection, members, files)
    seed = state.recipe.seeds[0]
    with state.stage(f"choose the blend of {collection.name}"):
        choose_in_run(state.out, blending, collection, files, tables, seed=seed)


def _blended_scores(
    state: "RunState", collection: Collection, members: Sequence[Member], files: Sequence[GraphFile]
) -> pl.DataFrame:
    """Score one split of a collection with each member, and blend."""
    tables = _member_scores(state, collection, members, files)
    mixing = written_mixing(state.out, state.recipe.blend, collection, list(tables))
    split = files[0].split

    def mixed() -> pl.DataFrame:
        with state.told(f"blend {collection.name}/{split}"):
            return mix(tables, mixing, files)

    return cached_scores(scores_path(state.out, collection, "blend", split), mixed)


def _member_scores(
    state: "RunState", collection: Collection, members: Sequence[Member], files: Sequence[GraphFile]
) -> dict[str, pl.DataFrame]:
    """Score one split of a collection with each member; by member name."""
    split = files[0].split
    return {
        member.name: scores_by_graph(
            scores_path(state.out, collection, member.name, split),
            files,
            member.load,
            what=f"predict {collection.name}/{split} by {member.name}",
            deadline=state.deadline,
            progress=state.progress,
        )
        for member in members
    }
