"""Many models' scores of the same configs, made into one.

Scores of different models have different scales, so each model's are first brought to 0..1 within
each graph: by minimum and maximum (which beat rank averaging and Borda counts in published
experience), or by rank. Members are joined by config content, never by row number.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from data.errors import PipelineError

KEYS = ["graph", "config_hash"]


def minmax(score: pl.Expr) -> pl.Expr:
    """Bring scores to 0..1; scores that are all equal become 0."""
    span = score.max() - score.min()
    return pl.when(span > 0).then((score - score.min()) / span).otherwise(0.0)


def rank_share(score: pl.Expr) -> pl.Expr:
    """Bring scores to 0..1 by average rank; a single config gets 0."""
    last = (pl.len() - 1).clip(lower_bound=1)
    return (score.rank("average") - 1) / last


METHODS: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "minmax-mean": minmax,
    "rank-mean": rank_share,
}


def blend(
    members: Mapping[str, pl.DataFrame],
    *,
    method: str,
    weights: Mapping[str, float],
) -> pl.DataFrame:
    """Average the members' scores, each scaled within its graph.

    Args:
        members: scores as of models.predict, by member name.
        method: one of METHODS.
        weights: per member; need not sum to 1.

    Returns:
        Scores in the first member's row order, lower = faster.

    Raises:
        PipelineError: a member lacks configs of another, or the weights sum to 0 or
            to infinity.
    """
    total = sum(weights[name] for name in members)
    if not 0 < total < math.inf:
        raise PipelineError(f"blend: the weights sum to {total}; expected a finite number above 0")
    names = list(members)
    result = members[names[0]].select("graph", "config", "config_hash")
    for name in names:
        scaled = members[name].with_columns(
            METHODS[method](pl.col("score").cast(pl.Float64)).over("graph").alias(name)
        )
        per_config = scaled.group_by(KEYS).agg(pl.col(name).mean())
        _refuse_unscored(names[0], per_config.join(result, on=KEYS, how="anti"))
        result = result.join(per_config, on=KEYS, how="left", maintain_order="left")
        _refuse_unscored(name, result.filter(~pl.col(name).is_finite().fill_null(False)))
    mean = pl.sum_horizontal(pl.col(name) * (weights[name] / total) for name in names)
    return result.with_columns(mean.cast(pl.Float32).alias("score")).drop(names)


def _refuse_unscored(name: str, unscored: pl.DataFrame) -> None:
    """Raise a PipelineError if there are rows that member `name` has not scored."""
    if unscored.height:
        raise PipelineError(
            f"blend: member {name} has no score for some configs of graph "
            f"{unscored['graph'][0]}; expected all members to have scored the same data"
        )


def member_weights(
    members: Sequence[str], weights_by_model: Mapping[Any, float]
) -> dict[str, float]:
    """Give each member its model's weight, 1 where the recipe names none.

    Args:
        members: "<model>-seed<number>".
        weights_by_model: the recipe's blend.weights.
    """
    return {name: weights_by_model.get(name.rsplit("-seed", 1)[0], 1.0) for name in members}
