"""How far the scores of several submissions lie apart: one recipe, trained from several seeds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

Report = Mapping[str, Any]


class Spread(NamedTuple):
    """What several reports of the same graphs say together.

    Attributes:
        collections: `mean`, `sd` (of a sample: one less than their number below the line), `min`
            and `max` over reports, by collection; None unless every report has a value.
        score: the same of the reports' scores; None also where they answer different collections,
            since those are means of different things.
        answered_by_some: collections that some reports have a value of, and some have not.
    """

    collections: dict[str, dict[str, float] | None]
    score: dict[str, float] | None
    answered_by_some: list[str]


def spread_of(reports: Sequence[Report]) -> Spread:
    """Summarise what `score_submission` returned for each of several submissions.

    Args:
        reports: at least two, all judged by the same labels.

    Raises:
        ValueError: fewer than two.
    """
    if len(reports) < 2:
        raise ValueError(f"{len(reports)} reports; expected at least two")
    collections, answered_by_some = {}, []
    for name in reports[0]["collections"]:
        values = [report["collections"][name]["value"] for report in reports]
        collections[name] = _summary(values)
        if None in values and any(value is not None for value in values):
            answered_by_some.append(name)
    score = None if answered_by_some else _summary([report["score"] for report in reports])
    return Spread(collections, score, answered_by_some)


def _summary(values: Sequence[float | None]) -> dict[str, float] | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return {
        "mean": float(np.mean(known)),
        "sd": float(np.std(known, ddof=1)),
        "min": min(known),
        "max": max(known),
    }
