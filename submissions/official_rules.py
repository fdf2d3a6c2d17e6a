"""What is known of the real competition's submission without its test files.

894 rows: the tile kernels, then the four layout collections, by the names of the official test
split; how many indices each row holds as `data.official.config_counts` says.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from common.metrics import TILE_PICKS
from data.official.config_counts import LAYOUT_CONFIGS, OTHER_LAYOUT_CONFIGS, SHORT_TILE_KERNELS
from data.official.names import official_parts
from data.tree import COLLECTIONS
from submissions.check import Problem, check_submission
from submissions.write import ScannedRow, scan_submission, split_id


@cache
def official_rows() -> Mapping[str, int | None]:
    """Return the number of configs of each official test graph, by submission ID.

    In the sample submission's order of collections; None for tile kernels.
    """
    rows: dict[str, int | None] = {}
    for collection in COLLECTIONS:
        for name in sorted(official_parts()[f"{collection.name}/test"].names):
            submission_id = f"{collection.name}:{name}"
            layout_configs = OTHER_LAYOUT_CONFIGS.get(submission_id, LAYOUT_CONFIGS)
            rows[submission_id] = layout_configs if collection.kind == "layout" else None
    return rows


def all_official(submission_ids: Iterable[str]) -> bool:
    """Tell whether every ID is a row of the real competition."""
    return official_rows().keys() >= set(submission_ids)


def check_official(path: Path, known: Mapping[str, int]) -> list[Problem]:
    """List all that is wrong with a submission to the real competition.

    Args:
        path: the submission.
        known: c, the number of configs, by submission ID, of test graphs whose files are at hand.
    """
    problems = check_submission(path, {**official_rows(), **known})
    if problems:
        return problems
    rows = list(scan_submission(path))
    return _order_problems(path, rows) + _short_row_problems(path, rows)


def _order_problems(path: Path, rows: list[ScannedRow]) -> list[Problem]:
    """Find the first row that stands after one of a later collection."""
    places = [_place(row.id) for row in rows]
    for row, place, before in zip(rows[1:], places[1:], places, strict=False):
        if place < before:
            order = ", ".join(collection.name for collection in COLLECTIONS)
            message = f"stands after {COLLECTIONS[before].name}; expected the order {order}"
            return [Problem(path, row.row, row.id, message)]
    return []


def _short_row_problems(path: Path, rows: list[ScannedRow]) -> list[Problem]:
    """Compare how many tile rows have fewer than five picks with the kernels that have no more."""
    rows_by_length = Counter(
        len(row.ranking) for row in rows if row.ranking is not None and _place(row.id) == 0
    )
    return [
        Problem(
            path,
            None,
            None,
            f"{rows_by_length[n_indices]} tile rows hold {n_indices} indices; expected "
            f"{SHORT_TILE_KERNELS.get(n_indices, 0)}, since so many kernels have so few configs",
        )
        for n_indices in range(1, TILE_PICKS)
        if rows_by_length[n_indices] != SHORT_TILE_KERNELS.get(n_indices, 0)
    ]


def _place(submission_id: str) -> int:
    """Return the position of an ID's collection in the sample submission's order."""
    found = split_id(submission_id)
    assert found is not None, submission_id  # the rows were checked before
    return COLLECTIONS.index(found[0])
