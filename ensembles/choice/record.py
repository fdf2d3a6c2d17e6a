"""A choice of a blend as it is written, read and shown."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common.atomic import write_bytes
from common.checksums import SEAL_KEY, UNSEALED, check_seal, sealed
from common.errors import PipelineError
from data.tree import Collection
from ensembles.blend import Mixing
from ensembles.choice.choose import BEST_BLEND, BEST_MEMBER, RECIPE, BlendChoice
from ensembles.choice.from_scores import mixing_of
from ensembles.diversify_picks import PickDiversity
from ensembles.scores import scores_path

CHOSEN_NOTE = (
    "The blend was chosen on the valid split, so the collection's value there is too good; "
    "nested_value is of graphs that had no part in the choice, and is what to believe."
)
KEPT_NOTE = (
    "Nothing beat the recipe's own blend by more than noise, so it stays; nested_value is its "
    "plain value on the valid split, to which nothing was fitted."
)

Row = tuple[str, float | None, float | None, float | None]


def record_of(choice: BlendChoice, mixing: Mixing) -> dict[str, Any]:
    """Return a choice as a table: the fields of BlendChoice, with how members are blended."""
    return {**asdict(choice), **mixing_record(mixing)}


def mixing_record(mixing: Mixing) -> dict[str, Any]:
    """Return how members become one as a table; `pick_diversity` only where there is one."""
    weights = {name: float(weight) for name, weight in mixing.weights.items()}
    chosen = {"pick_diversity": mixing.diversity._asdict()} if mixing.diversity else {}
    return {"method": mixing.method, "weights": weights, **chosen}


def choice_rows(choice: BlendChoice) -> list[Row]:
    """List what was chosen among: name, value, and interval where there is one.

    The interval of the difference is the one that decides, of 99 %; that of the choice is of 95 %.

    What decides are best blend and best member, each found anew without the graphs it is judged on.
    """
    rows: list[Row] = [
        (name, value, None, None)
        for name, value in {**choice.member_values, **choice.candidates}.items()
    ]
    rows.append((BEST_BLEND, choice.best_blend_value, None, None))
    rows.append((BEST_MEMBER, choice.best_member_value, None, None))
    if choice.recipe_value is not None:
        rows.append((RECIPE, choice.recipe_value, None, None))
    rows.append((f"{BEST_BLEND} less {BEST_MEMBER}", choice.difference, *choice.difference_ci99))
    return [*rows, (f"chosen: {choice.chosen}", choice.nested_value, *choice.nested_ci95)]


def choice_file(out: Path, collection: Collection) -> Path:
    """Return where a run keeps its choice for a collection."""
    return scores_path(out, collection, "blend", "valid").with_name("choice.json")


def write_choice(path: Path, record: Mapping[str, Any]) -> None:
    """Write a choice and its checksum, whole or not at all."""
    text = json.dumps({**record, SEAL_KEY: UNSEALED}, indent=1, allow_nan=False) + "\n"
    write_bytes(path, sealed(text.encode()))


def read_choice(path: Path) -> dict[str, Any] | None:
    """Read a choice; None where there is none.

    Raises:
        PipelineError: the file is damaged.
    """
    if not path.exists():
        return None
    check_seal(path, "remove the file, and the choice is made again")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        mixing_in(record)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(
            f"{path}: cannot be read: {error}; expected a choice with method and weights"
        ) from error
    return {key: value for key, value in record.items() if key != SEAL_KEY}


def mixing_in(record: Mapping[str, Any]) -> Mixing:
    """Return how a written choice blends members."""
    given = record.get("pick_diversity")
    diversity = PickDiversity(**given) if given else None
    return Mixing(str(record["method"]), dict(record["weights"]), diversity)


def mixing_by(choice: BlendChoice, recipe: Mixing) -> Mixing:
    """Return how to blend: by the choice, or by the recipe where its blend stays."""
    return recipe if choice.chosen == RECIPE else mixing_of(choice)
