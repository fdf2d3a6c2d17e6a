"""Blend finished submissions by the mean place of each config.

A place is the position of a config in a row. A tile row lists five configs, and all configs that it
does not list have the place after the last one. m submissions, n indices of a row, c configs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from common.errors import PipelineError
from common.metrics import TILE_PICKS
from submissions.check import Indices, SubmissionRow, ranking_faults


def blend_submissions(
    members: Mapping[Path, Mapping[str, Indices]], weights: Sequence[float] = ()
) -> Iterator[SubmissionRow]:
    """Yield a row for each graph, with its configs sorted by their weighted mean place.

    Equal means keep the order of the first submission, then that of the next ones.

    Args:
        members: Rankings by submission ID, (n,) int64 each, by file. All need the same graphs.
        weights: Positive weight of each file, (m,). Default: 1 each.
    """
    first = next(iter(members))
    for path, rankings in members.items():
        for name in sorted(rankings.keys() ^ members[first].keys()):
            has, lacks = (path, first) if name in rankings else (first, path)
            raise PipelineError(f"{lacks}: has no row for {name}, which {has} has; expected one")
    for name in members[first]:
        rows = {path: rankings[name] for path, rankings in members.items()}
        configs = np.unique(np.concatenate([*rows.values()]))
        n = len(rows[first])
        is_whole = not name.startswith("tile:") or n < TILE_PICKS
        places = np.full((len(rows), len(configs)), n)  # (m, c)
        for place, (path, row) in zip(places, rows.items(), strict=True):
            faults = ranking_faults(row, int(configs.max(initial=0)) + 1, max(n, 1))
            if is_whole and not np.isin(row, rows[first]).all():
                faults.append("has other configs")
            if faults:
                fault = (
                    faults[0] if path == first else f"{faults[0]}; expected the configs of {first}"
                )
                raise PipelineError(f"{path}: {name}: {fault}")
            place[np.searchsorted(configs, row)] = np.arange(n)
        order = np.lexsort((*places[::-1], np.array(weights or [1] * len(rows)) @ places))
        yield SubmissionRow(name, configs[order])
