"""How members' scores become one ranking: the blend, and then for tiles the picks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from data.tree import GraphFile
from ensembles.blend import blend
from ensembles.diversify_picks import Spread, spread_table


class Mixing(NamedTuple):
    """How members' scores become one.

    Attributes:
        method: of ensembles.blend.
        weights: by member.
        spread: how tile picks are spread; None picks best first.
    """

    method: str
    weights: Mapping[str, float]
    spread: Spread | None = None


def mix(
    members: Mapping[str, pl.DataFrame], mixing: Mixing, files: Sequence[GraphFile]
) -> pl.DataFrame:
    """Blend scores and spread the picks; columns and order as of the first member.

    Args:
        members: scores as of models.predict, by member name.
        files: the graphs that are scored; read only where picks are spread.

    Raises:
        PipelineError: as blend and spread_table.
    """
    blended = blend(members, method=mixing.method, weights=mixing.weights)
    return spread_table(blended, files, mixing.spread) if mixing.spread else blended
