"""The stage of a run that scores with every member and blends, each score file made once."""

from collections.abc import Sequence
from functools import partial

import polars as pl

from common.progress import in_one_step
from data.tree import COLLECTIONS, Collection, GraphFile
from ensembles.blend import mix
from ensembles.choice.in_run import choose_in_run, written_mixing
from ensembles.scores import scores_by_graph, scores_path
from models.predict import cached_scores, read_scores
from models.trees.baselines import FLOORS
from pipeline.run.state import SUBMISSION, RunState


def predict_and_blend(state: RunState) -> dict[str, list[tuple[Collection, pl.DataFrame]]]:
    """Score the test and the valid split; by split, the blended scores of each collection.

    Raises:
        PipelineError: a damaged file, or scores that are not finite.
        OutOfTime: the time is over.
    """
    blended: dict[str, list[tuple[Collection, pl.DataFrame]]] = {split: [] for split in SUBMISSION}
    for collection in COLLECTIONS:
        if collection.name not in state.sources:
            continue
        valid = state.of(collection, "valid")
        if state.recipe.blend.choose and valid:
            _choose_blend(state, collection, valid)
        for split, done in blended.items():
            files = state.of(collection, split)
            if files:
                with state.costs.stage(f"predict {collection.name}"):
                    done.append((collection, _blended_scores(state, collection, files)))
        if valid:  # scored without training as well: the report has a floor to compare with
            with state.costs.stage("rank without training"):
                path = scores_path(state.out, collection, "floor", "valid")
                floor = {path: partial(FLOORS.__getitem__, collection.kind)}
                what = f"rank {collection.name}/valid without training"
                scores_by_graph(floor, valid, what=what, subsets=state.subsets)
    return blended


def _choose_blend(state: RunState, collection: Collection, files: Sequence[GraphFile]) -> None:
    with state.costs.stage(f"predict {collection.name}"):
        tables = _member_scores(state, collection, files)
    seed = state.recipe.seeds[0]
    with state.costs.stage(f"choose the blend of {collection.name}"):
        choose_in_run(state.out, state.recipe.blend, collection, files, tables, seed=seed)


def _blended_scores(
    state: RunState, collection: Collection, files: Sequence[GraphFile]
) -> pl.DataFrame:
    tables = _member_scores(state, collection, files)
    mixing = written_mixing(state.out, state.recipe.blend, collection, list(tables))
    split = files[0].split

    def mixed() -> pl.DataFrame:
        with in_one_step(f"blend {collection.name}/{split}"):
            return mix(tables, mixing, files)

    return cached_scores(scores_path(state.out, collection, "blend", split), mixed)


def _member_scores(
    state: RunState, collection: Collection, files: Sequence[GraphFile]
) -> dict[str, pl.DataFrame]:
    split = files[0].split
    paths = {
        m: scores_path(state.out, collection, m.name, split) for m in state.members(collection)
    }
    scores_by_graph(
        {path: member.load for member, path in paths.items()},
        files,
        what=f"predict {collection.name}/{split}",
        subsets=state.subsets,
    )
    return {member.name: read_scores(path) for member, path in paths.items()}
