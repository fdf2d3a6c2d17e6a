"""The choice of a blend within a run: made on the valid split's scores, written, read and shown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl

from common.checksums import SEAL_KEY, UNSEALED, check_seal, write_sealed
from common.errors import PipelineError
from common.progress import log
from data.tree import Collection, GraphFile
from ensembles.blend import SCALES, Mixing, member_weights
from ensembles.choice.choose import RECIPE
from ensembles.choice.from_scores import choose, labelled, mixing_of
from ensembles.diversify_picks import PickDiversity
from ensembles.scores import scores_path
from models.config.recipe import BlendConfig

CHOSEN_NOTE = (
    "The blend was chosen on the valid split, so the collection's value there is too good; "
    "nested_value is of graphs that had no part in the choice, and is what to believe."
)
KEPT_NOTE = (
    "Nothing beat the recipe's own blend by more than noise, so it stays; nested_value is its "
    "plain value on the valid split, to which nothing was fitted."
)


def recipe_mixing(blending: BlendConfig, kind: str, members: Sequence[str]) -> Mixing:
    """Return the recipe's own blend of members that rank configs of `kind`."""
    diversity = blending.pick_diversity_for(kind)
    return Mixing(
        blending.method,
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
        return _mixing_in(record)
    return recipe_mixing(blending, collection.kind, members)


def choose_in_run(
    out: Path,
    blending: BlendConfig,
    files: Mapping[Collection, Sequence[GraphFile]],
    tables: Mapping[Collection, Mapping[str, pl.DataFrame]],
    *,
    seed: int,
) -> None:
    """Choose how to blend the members of one collection, or of several together, and write it.

    An official xla split has seven graphs: its two searches together have twice the labels. The
    recipe's own blend stays unless it is beaten beyond noise. Nothing if that was done before.

    Args:
        files: labelled graphs by collection, all of one kind.
        tables: what the same members scored of each collection.

    Raises:
        PipelineError: a damaged file.
    """
    paths = [choice_file(out, collection) for collection in files]
    members = list(next(iter(tables.values())))
    if all(path.exists() for path in paths) or len(members) < 2:
        return
    names = " and ".join(collection.name for collection in files)
    kind = next(iter(files)).kind
    own = recipe_mixing(blending, kind, members)
    known, scored = (files, tables) if len(files) == 1 else _by_id(files, tables)
    by = labelled([file for some in known.values() for file in some])
    reason = by.too_few()
    if reason:
        log.info(f"{names}: {reason}; the recipe's blend stays")
        record = {"chosen": RECIPE, "reason": reason, "nested_value": None, **mixing_record(own)}
    else:
        parts = scored.values()
        every = {name: pl.concat(part[name] for part in parts) for name in members}
        choice = choose(by, every, recipe=own, seed=seed)
        is_kept = choice.chosen == RECIPE
        mixing = own if is_kept else mixing_of(choice)
        if kind == "layout":  # whose picks the choice did not judge
            mixing = mixing._replace(diversity=own.diversity)
        note = KEPT_NOTE if is_kept else CHOSEN_NOTE
        record = {**asdict(choice), **mixing_record(mixing), "note": note}
        log.info(
            f"{names}: no blend beats the recipe's by more than noise; it stays"
            if is_kept
            else f"{names}: blended by {choice.chosen}; on valid graphs that had no part in "
            f"the choice {choice.nested_value:.4f}, which is what to believe"
        )
    for path in paths:
        write_choice(path, {**record, "of": [collection.name for collection in files]})


def _by_id(
    files: Mapping[Collection, Sequence[GraphFile]],
    tables: Mapping[Collection, Mapping[str, pl.DataFrame]],
) -> tuple[dict[Collection, list[GraphFile]], dict[Collection, dict[str, pl.DataFrame]]]:
    """Name graphs by their IDs: the searches of a source have graphs of the same names."""
    named = {
        c: [replace(file, name=file.submission_id) for file in own] for c, own in files.items()
    }
    told = {
        c: {n: t.with_columns(graph=f"{c.name}:" + pl.col("graph")) for n, t in own.items()}
        for c, own in tables.items()
    }
    return named, told


def mixing_record(mixing: Mixing) -> dict[str, Any]:
    """Return how members become one as a table; `pick_diversity` only where there is one."""
    weights = {name: float(weight) for name, weight in mixing.weights.items()}
    chosen = {"pick_diversity": mixing.diversity._asdict()} if mixing.diversity else {}
    return {"method": mixing.method, "weights": weights, **chosen}


def choice_file(out: Path, collection: Collection) -> Path:
    return scores_path(out, collection, "blend", "valid").with_name("choice.json")


def write_choice(path: Path, record: Mapping[str, Any]) -> None:
    """Write a choice with its checksum, whole or not at all: a resumed run reads and reports it."""
    text = json.dumps({**record, SEAL_KEY: UNSEALED}, indent=1, allow_nan=False) + "\n"
    write_sealed(path, text.encode())


def read_choice(path: Path) -> dict[str, Any] | None:
    """Read a choice; None where there is none.

    Raises:
        PipelineError: the file is damaged.
    """
    if not path.exists():
        return None
    check_seal(path, "remove the file, and the choice is made again")
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _mixing_in(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{path}: cannot be read: {error}; expected a choice with method and weights; remove "
            "the file, and the choice is made again"
        ) from error
    return {key: value for key, value in record.items() if key != SEAL_KEY}


def _mixing_in(record: Mapping[str, Any]) -> Mixing:
    method, given = record["method"], record.get("pick_diversity")
    if method not in SCALES:
        raise ValueError(f"no method '{method}'")
    weights = {name: float(weight) for name, weight in record["weights"].items()}
    return Mixing(method, weights, PickDiversity(**given) if given else None)
