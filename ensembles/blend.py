"""Blend the scores of several models into one score per config.

The scores of different models have different scales. So the scores of each model are first scaled
to 0..1 within each graph: by minimum and maximum, or by rank. In published experience minimum and
maximum beat rank averaging and Borda counts. Models are joined by the content of configs, never by
row number. A model may leave out whole graphs.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from common.errors import PipelineError
from common.files import SEAL_KEY, UNSEALED, check_seal, read_json, write_sealed
from data.tree import Collection
from ensembles.picks import TILE_ERROR
from ensembles.scores import scores_path
from models.config.recipe import BlendConfig

KEYS = ["graph", "config_hash"]


def minmax(score: pl.Expr) -> pl.Expr:
    """Scale the scores of one graph to 0..1 by minimum and maximum. Equal scores get 0."""
    span = score.max() - score.min()
    return pl.when(span > 0).then((score - score.min()) / span).otherwise(0.0)


def rank_share(score: pl.Expr) -> pl.Expr:
    """Scale the scores of one graph to 0..1 by rank. Equal scores get their average rank."""
    last = (pl.len() - 1).clip(lower_bound=1)
    return (score.rank("average") - 1) / last


SCALES: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "minmax-mean": minmax,
    "rank-mean": rank_share,
}


class BlendSpec(NamedTuple):
    """Scale and weights of a blend, and the error of its scores for `ensembles.picks`."""

    method: str
    weights: Mapping[str, float]
    tile_error: float = TILE_ERROR


def apply_blend(members: Mapping[str, pl.DataFrame], spec: BlendSpec) -> pl.DataFrame:
    """Average the scores of the members, each scaled within its graph.

    A graph that a member does not rank is averaged over the other members. If all their weights
    are 0, they count equally. The result has the rows of the member that ranks most graphs.
    """
    total = sum(spec.weights[name] for name in members)
    if not 0 < total < math.inf:
        raise PipelineError(f"blend: the weights sum to {total}; expected a finite number above 0")
    names = list(members)
    widest = max(names, key=lambda name: members[name].height)
    table = join_scaled(members[widest], members, SCALES[spec.method], rows_of=f"member {widest}")
    shares = {name: spec.weights[name] / total for name in names}
    weight = pl.sum_horizontal(pl.col(name).is_not_null() * shares[name] for name in names)
    total_score = pl.sum_horizontal(pl.col(name) * shares[name] for name in names)
    mean = pl.when(weight > 0).then(total_score / weight).otherwise(pl.mean_horizontal(names))
    return table.with_columns(mean.cast(pl.Float32).alias("score")).drop(names)


def join_scaled(
    rows: pl.DataFrame,
    members: Mapping[str, pl.DataFrame],
    scale: Callable[[pl.Expr], pl.Expr],
    *,
    rows_of: str,
) -> pl.DataFrame:
    """Join the scaled scores of members by config. A graph that a member leaves out has null.

    Args:
        rows_of: Name of the source of `rows` for error messages.
    """
    result = rows.select("graph", "config", "config_hash")
    distinct = not result.select(KEYS).is_duplicated().any()
    for name, table in members.items():
        # A score that is not finite counts as missing.
        finite = table.filter(pl.col("score").is_finite())
        scaled_scores = finite.with_columns(
            scale(pl.col("score").cast(pl.Float64)).over("graph").alias(name)
        )
        # Most members have the same rows in the same order, and need no slow join.
        if finite.select(KEYS).equals(result.select(KEYS)):
            column = pl.col(name) if distinct else pl.col(name).mean().over(KEYS)
            result = result.with_columns(scaled_scores.select(*KEYS, name).select(column))
        else:
            per_config = scaled_scores.group_by(KEYS).agg(pl.col(name).mean())
            _refuse_missing(rows_of, per_config.join(result, on=KEYS, how="anti"))
            result = result.join(per_config, on=KEYS, how="left", maintain_order="left")
        is_ranked = pl.col("graph").is_in(table["graph"].unique().to_list())
        _refuse_missing(f"member {name}", result.filter(pl.col(name).is_null() & is_ranked))
    return result


def _refuse_missing(source: str, missing_rows: pl.DataFrame) -> None:
    if missing_rows.height:
        raise PipelineError(
            f"blend: {source} has no score for some configs of graph "
            f"{missing_rows['graph'][0]}; expected all members to have scored the same data"
        )


def member_weights(
    members: Sequence[str], weights_by_model: Mapping[Any, float]
) -> dict[str, float]:
    """Share the weight of each model, by default 1, among its members "<model>-seed<number>"."""
    models = [name.rsplit("-seed", 1)[0] for name in members]
    n_seeds = Counter(models)
    return {
        name: weights_by_model.get(model, 1.0) / n_seeds[model]
        for name, model in zip(members, models, strict=True)
    }


def recipe_blend(blending: BlendConfig, members: Sequence[str]) -> BlendSpec:
    """Return the blend that a recipe defines."""
    return BlendSpec(blending.method, member_weights(members, blending.weights))


def run_blend(
    out: Path, blending: BlendConfig, collection: Collection, members: Sequence[str]
) -> BlendSpec:
    """Return the chosen blend of a run, or the recipe's blend if there is no choice."""
    record = read_choice(choice_file(out, collection)) if blending.choose else None
    if record is not None and set(record["weights"]) == set(members):
        tile_error = record.get("tile_error", TILE_ERROR)
        return BlendSpec(record["method"], record["weights"], tile_error)
    return recipe_blend(blending, members)


def blend_record(spec: BlendSpec) -> dict[str, Any]:
    """Return the values of a blend for JSON."""
    return spec._asdict() | {"weights": {name: float(w) for name, w in spec.weights.items()}}


def choice_file(out: Path, collection: Collection) -> Path:
    return scores_path(out, collection, "blend", "valid").with_name("choice.json")


def write_choice(path: Path, record: Mapping[str, Any]) -> None:
    """Write a choice with a checksum, for the report and for resumed runs."""
    text = json.dumps({**record, SEAL_KEY: UNSEALED}, indent=1, allow_nan=False) + "\n"
    write_sealed(path, text.encode())


def read_choice(path: Path) -> dict[str, Any] | None:
    """Read the keys of a choice, or return None if there is no file."""
    if not path.exists():
        return None
    remedy = "remove the file; the next run repeats the choice"
    check_seal(path, remedy)
    record = read_json(path, dict[str, Any], expected=f"a choice with method and weights; {remedy}")
    record.pop(SEAL_KEY, None)
    return record
