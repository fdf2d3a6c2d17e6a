"""The choice of a blend within a run: on the valid split's scores, per collection."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from common.progress import log
from data.tree import Collection, GraphFile
from ensembles.blend import Mixing, member_weights
from ensembles.choice.choose import RECIPE
from ensembles.choice.from_scores import choose, labelled
from ensembles.choice.record import (
    CHOSEN_NOTE,
    KEPT_NOTE,
    choice_file,
    mixing_by,
    mixing_in,
    mixing_record,
    read_choice,
    record_of,
    write_choice,
)
from ensembles.diversify_picks import PickDiversity
from models.config.recipe import BlendConfig


def recipe_mixing(blending: BlendConfig, kind: str, members: Sequence[str]) -> Mixing:
    """Return the recipe's own blend of members that rank configs of `kind`."""
    diversity = blending.pick_diversity_for(kind)
    return Mixing(
        blending.method_for(kind),
        member_weights(members, blending.weights),
        PickDiversity(*diversity) if diversity else None,
    )


def written_mixing(
    out: Path, blending: BlendConfig, collection: Collection, members: Sequence[str]
) -> Mixing:
    """Return how a run blends a collection's members: by its choice, else by the recipe.

    Raises:
        PipelineError: the choice is damaged.
    """
    record = read_choice(choice_file(out, collection)) if blending.choose else None
    if record is not None and set(record["weights"]) == set(members):
        return mixing_in(record)
    return recipe_mixing(blending, collection.kind, members)


def choose_in_run(
    out: Path,
    blending: BlendConfig,
    collection: Collection,
    files: Sequence[GraphFile],
    tables: Mapping[str, pl.DataFrame],
    *,
    seed: int,
) -> None:
    """Choose how to blend a collection's members, and write it; nothing if that was done before.

    The recipe's own blend stays unless it is beaten beyond noise, and where there is too little to
    choose by; both are said.

    Args:
        out: the run's folder.
        files: the collection's valid split.
        tables: the members' scores of it, by member name.
        seed: of folds, sampled pairs and intervals.

    Raises:
        PipelineError: a damaged file.
    """
    path = choice_file(out, collection)
    if path.exists() or len(tables) < 2:
        return
    own = recipe_mixing(blending, collection.kind, list(tables))
    by = labelled(collection, files)
    reason = by.too_few()
    if reason:
        log.info(f"{collection.name}: {reason}; the recipe's blend stays")
        unjudged = {"chosen": RECIPE, "reason": reason, "nested_value": None}
        write_choice(path, {**unjudged, **mixing_record(own)})
        return
    choice = choose(by, tables, recipe=own, seed=seed)
    kept = choice.chosen == RECIPE
    note = KEPT_NOTE if kept else CHOSEN_NOTE
    write_choice(path, {**record_of(choice, mixing_by(choice, own)), "note": note})
    log.info(
        f"{collection.name}: no blend beats the recipe's by more than noise; it stays"
        if kept
        else f"{collection.name}: blended by {choice.chosen}; on valid graphs that had no part in "
        f"the choice {choice.nested_value:.4f}, which is what to believe"
    )
