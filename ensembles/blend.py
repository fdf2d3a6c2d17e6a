"""Many models' scores of the same configs, made into one ranking: the blend, then the picks.

Scores of different models have different scales, so each model's are first brought to 0..1 within
each graph: by minimum and maximum (which beat rank averaging and Borda counts in published
experience), or by rank. Members are joined by config content, never by row number.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from common.checksums import SEAL_KEY, UNSEALED, check_seal, write_sealed
from common.errors import PipelineError
from data.tree import Collection, GraphFile
from ensembles.diversify_picks import PickDiversity, diversify_table
from ensembles.scores import scores_path
from models.config.recipe import BlendConfig

KEYS = ["graph", "config_hash"]


def minmax(score: pl.Expr) -> pl.Expr:
    """Bring scores to 0..1; scores that are all equal become 0."""
    span = score.max() - score.min()
    return pl.when(span > 0).then((score - score.min()) / span).otherwise(0.0)


def rank_share(score: pl.Expr) -> pl.Expr:
    """Bring scores to 0..1 by average rank; a single config gets 0."""
    last = (pl.len() - 1).clip(lower_bound=1)
    return (score.rank("average") - 1) / last


SCALES: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "minmax-mean": minmax,
    "rank-mean": rank_share,
}


class Mixing(NamedTuple):
    """How members' scores become one."""

    method: str
    weights: Mapping[str, float]
    diversity: PickDiversity | None = None  # how far apart picks are; None picks best first


def mix(
    members: Mapping[str, pl.DataFrame], mixing: Mixing, files: Sequence[GraphFile]
) -> pl.DataFrame:
    """Blend scores and diversify the picks; columns and order as of the first member.

    Raises:
        PipelineError: as blend and diversify_table.
    """
    blended = blend(members, method=mixing.method, weights=mixing.weights)
    return diversify_table(blended, files, mixing.diversity) if mixing.diversity else blended


def blend(
    members: Mapping[str, pl.DataFrame],
    *,
    method: str,
    weights: Mapping[str, float],
) -> pl.DataFrame:
    """Average the members' scores, each scaled within its graph.

    Rows as of the first member, lower = faster; weights need not sum to 1.

    Raises:
        PipelineError: a member lacks configs of another, or the weights' sum is 0 or infinite.
    """
    total = sum(weights[name] for name in members)
    if not 0 < total < math.inf:
        raise PipelineError(f"blend: the weights sum to {total}; expected a finite number above 0")
    names = list(members)
    result = joined(members[names[0]], members, SCALES[method], rows_of=f"member {names[0]}")
    mean = pl.sum_horizontal(pl.col(name) * (weights[name] / total) for name in names)
    return result.with_columns(mean.cast(pl.Float32).alias("score")).drop(names)


def joined(
    rows: pl.DataFrame,
    members: Mapping[str, pl.DataFrame],
    scale: Callable[[pl.Expr], pl.Expr],
    *,
    rows_of: str,
) -> pl.DataFrame:
    """Join the members' scaled scores by config, in the order of `rows`; one column each.

    Args:
        scale: brings the scores of one graph to 0..1.

    Raises:
        PipelineError: a member lacks configs of `rows`, or has others.
    """
    result = rows.select("graph", "config", "config_hash")
    distinct = not result.select(KEYS).is_duplicated().any()
    for name, table in members.items():
        finite = table.filter(pl.col("score").is_finite())  # the others are none
        scaled = finite.with_columns(
            scale(pl.col("score").cast(pl.Float64)).over("graph").alias(name)
        )
        if finite.select(KEYS).equals(result.select(KEYS)):  # as is usual, and many times as fast
            own = pl.col(name) if distinct else pl.col(name).mean().over(KEYS)
            result = result.with_columns(scaled.select(*KEYS, name).select(own))
        else:
            per_config = scaled.group_by(KEYS).agg(pl.col(name).mean())
            _refuse_unscored(rows_of, per_config.join(result, on=KEYS, how="anti"))
            result = result.join(per_config, on=KEYS, how="left", maintain_order="left")
        _refuse_unscored(f"member {name}", result.filter(pl.col(name).is_null()))
    return result


def _refuse_unscored(who: str, unscored: pl.DataFrame) -> None:
    if unscored.height:
        raise PipelineError(
            f"blend: {who} has no score for some configs of graph "
            f"{unscored['graph'][0]}; expected all members to have scored the same data"
        )


def member_weights(
    members: Sequence[str], weights_by_model: Mapping[Any, float]
) -> dict[str, float]:
    """Give each member its model's weight, 1 where the recipe names none.

    Args:
        members: "<model>-seed<number>"; any other name is its model's.
    """
    return {name: weights_by_model.get(name.rsplit("-seed", 1)[0], 1.0) for name in members}


def recipe_mixing(blending: BlendConfig, kind: str, members: Sequence[str]) -> Mixing:
    """Return the recipe's own blend of members that rank configs of `kind`."""
    off, length = (getattr(blending, f"{kind}_{key}") for key in ("diversity", "diversity_length"))
    diversity = PickDiversity(off, length) if off else None
    return Mixing(blending.method, member_weights(members, blending.weights), diversity)


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
    remedy = "remove the file, and the choice is made again"
    check_seal(path, remedy)
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _mixing_in(record)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{path}: cannot be read: {error}; expected a choice with method and weights; {remedy}"
        ) from error
    return {key: value for key, value in record.items() if key != SEAL_KEY}


def _mixing_in(record: Mapping[str, Any]) -> Mixing:
    method, given = record["method"], record.get("pick_diversity")
    if method not in SCALES:
        raise ValueError(f"no method '{method}'")
    weights = {name: float(weight) for name, weight in record["weights"].items()}
    return Mixing(method, weights, PickDiversity(**given) if given else None)
