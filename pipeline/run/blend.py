"""The stage of a run that blends: what every member scored, collection by collection."""

from collections.abc import Sequence

import polars as pl

from common.checksums import write_table
from common.progress import in_one_step
from data.tree import COLLECTIONS, Collection, GraphFile
from ensembles.blend import mix
from ensembles.choice.in_run import choose_in_run, written_mixing
from ensembles.members import FLOOR, Member
from ensembles.scores import scores_path
from models.predict import read_scores
from pipeline.run.jobs import Ranking
from pipeline.run.state import SUBMISSION, RunState


def rankings_of(state: RunState) -> list[Ranking]:
    """List what is to be ranked by whom: the test and the valid split of each collection.

    The valid split is ranked without training as well: the report has a floor to compare with.
    """
    rankings = []
    for collection in COLLECTIONS:
        for split in SUBMISSION if collection.name in state.sources else ():
            files = state.of(collection, split)
            members = {
                scores_path(state.out, collection, member.name, split): member
                for member in state.members(collection)
            }
            if split == "valid":
                floor = Member(FLOOR, 0, state.out / "models" / FLOOR, collection.kind)
                members[scores_path(state.out, collection, FLOOR, split)] = floor
            at_most = state.recipe.valid_configs if split == "valid" else 0
            if files:
                models = [member.model for member in members.values()]
                rankings.append(Ranking(collection, split, files, members, models, at_most))
    return rankings


def blend_all(state: RunState) -> dict[str, list[tuple[Collection, pl.DataFrame]]]:
    """Blend what the members scored; by split, the blended scores of each collection."""
    blended: dict[str, list[tuple[Collection, pl.DataFrame]]] = {split: [] for split in SUBMISSION}
    ranked = [collection for collection in COLLECTIONS if collection.name in state.sources]
    if state.recipe.blend.choose:
        _choose_all(state, [c for c in ranked if state.of(c, "valid")])
    for collection in ranked:
        for split, done in blended.items():
            files = state.of(collection, split)
            if files:
                with state.costs.stage(f"predict {collection.name}"):
                    done.append((collection, _blended_scores(state, collection, files)))
    return blended


def _choose_all(state: RunState, collections: Sequence[Collection]) -> None:
    """Choose blends; of a source's two searches together, where the same members rank both."""
    together: dict[tuple[str, ...], list[Collection]] = {}
    for collection in collections:
        source = collection.name.split(":")[:2]
        names = [member.name for member in state.members(collection)]
        together.setdefault((*source, *names), []).append(collection)
    for group in together.values():
        files = {collection: state.of(collection, "valid") for collection in group}
        tables = {collection: _member_scores(state, collection, "valid") for collection in group}
        with state.costs.stage(f"choose the blend of {' and '.join(c.name for c in group)}"):
            choose_in_run(state.out, state.recipe.blend, files, tables, seed=state.recipe.seeds[0])


def _blended_scores(
    state: RunState, collection: Collection, files: Sequence[GraphFile]
) -> pl.DataFrame:
    split = files[0].split
    tables = _member_scores(state, collection, split)
    mixing = written_mixing(state.out, state.recipe.blend, collection, list(tables))
    path = scores_path(state.out, collection, "blend", split)
    if not path.exists():
        with in_one_step(f"blend {collection.name}/{split}"):
            write_table(path, mix(tables, mixing, files))
    return read_scores(path)


def _member_scores(state: RunState, collection: Collection, split: str) -> dict[str, pl.DataFrame]:
    names = [member.name for member in state.members(collection)]
    return {name: read_scores(scores_path(state.out, collection, name, split)) for name in names}
