"""Check a submission against the graphs it must answer for, before anybody uploads it.

The counts are those of the data files. For the real competition, 894 rows by the names of the
official test split, they are known without its files but for those of tile kernels. Its own sample
submission, which Kaggle scores, lists 1000 indices for every layout graph and five for every tile
kernel; in truth two layout graphs have 1001 configs and sixteen kernels fewer than five. Both are
accepted.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.metrics import TILE_PICKS
from data.npz.read import Archive
from data.official.published import (
    ALL_TILE_CONFIGS,
    LAYOUT_CONFIGS,
    OTHER_LAYOUT_CONFIGS,
    official_names,
)
from data.tree import COLLECTIONS, find_graphs
from submissions.write import ScannedRow, n_picks, scan_submission, shown, split_id

MAX_PROBLEMS = 1000  # more than the competition has rows


class Problem(NamedTuple):
    """One thing that is wrong; `str()` gives it as one line.

    `row` counts from 1, the header; `row` and `id` are None for what concerns no line.
    """

    file: Path
    row: int | None
    id: str | None
    message: str

    def __str__(self) -> str:
        row = None if self.row is None else f"row {self.row}"
        name = None if self.id is None else shown(self.id)
        file = "\\n".join(str(self.file).splitlines())
        return ": ".join(part for part in (file, row, name, self.message) if part is not None)


def check_submission(path: Path, expected: Mapping[str, int | None]) -> list[Problem]:
    """List what is wrong with a submission file; an empty list means it can be uploaded.

    Found: an unreadable file or line, missing, surplus and repeated rows, and rankings with a wrong
    count, an index out of range or a repeated index. The order of the rows is free.

    Args:
        expected: c, the number of configs, by submission ID. None for a tile kernel whose number is
            not known: any picks that some kernel may have are accepted.
    """
    try:
        problems = list(islice(_problems(path, expected), MAX_PROBLEMS + 1))
    except PipelineError as error:
        return [Problem(path, None, None, str(error).removeprefix(f"{path}: "))]
    if len(problems) > MAX_PROBLEMS:
        message = f"has more than {MAX_PROBLEMS} problems; the others are not listed"
        problems[MAX_PROBLEMS] = Problem(path, None, None, message)
    return problems


@cache
def official_rows() -> Mapping[str, int | None]:
    """Return the number of configs of each official test graph, by submission ID.

    In the sample submission's order of collections; None for tile kernels.
    """
    rows: dict[str, int | None] = {}
    for collection in COLLECTIONS:
        for name in sorted(official_names()[f"{collection.name}/test"]):
            submission_id = f"{collection.name}:{name}"
            layout_configs = OTHER_LAYOUT_CONFIGS.get(submission_id, LAYOUT_CONFIGS)
            rows[submission_id] = layout_configs if collection.kind == "layout" else None
    return rows


def expected_rows(data_dir: Path, split: str) -> dict[str, int]:
    """Return the number of configs of each graph of a split, by submission ID.

    Raises:
        PipelineError: the split has no graph, or a file is damaged.
    """
    files = find_graphs(data_dir, splits=(split,))
    return {file.submission_id: _count_configs(file.path) for file in files}


def _count_configs(path: Path) -> int:
    with Archive(path) as archive:
        (n_configs,) = archive.header("config_runtime", dtype=np.int64, shape=(None,)).shape
        if n_configs == 0:
            archive.fail("config_runtime", "has zero configs; expected at least one")
    return n_configs


def ranking_faults(ranking: NDArray[np.int64], n_configs: int, n_indices: int) -> list[str]:
    """Say what keeps `ranking` (m,) from being `n_indices` distinct ones of 0..c-1."""
    faults = []
    if len(ranking) != n_indices:
        faults.append(f"has {len(ranking)} indices; expected {n_indices} of {n_configs} configs")
    outside = ranking[(ranking < 0) | (ranking >= n_configs)]
    if len(outside):
        faults.append(f"index {outside[0]}{_more(len(outside))}; expected 0..{n_configs - 1}")
    values, counts = np.unique(ranking, return_counts=True)
    repeated = values[counts > 1]
    if len(repeated):
        faults.append(
            f"index {repeated[0]}{_more(len(repeated))} is repeated; expected each config once"
        )
    return faults


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def _problems(path: Path, expected: Mapping[str, int | None]) -> Iterator[Problem]:
    first_row: dict[str, int] = {}
    for row in scan_submission(path):
        if row.id in first_row:
            message = f"comes twice, first in row {first_row[row.id]}; expected one row per graph"
            yield Problem(path, row.row, row.id, message)
        elif row.id:
            first_row[row.id] = row.row
        if row.fault is not None:
            yield Problem(path, row.row, None, row.fault)
            continue
        for fault in _row_faults(row, expected):
            yield Problem(path, row.row, row.id, fault)
    for submission_id, n_configs in expected.items():
        if submission_id not in first_row:
            message = f"row is missing; expected {_wanted(submission_id, n_configs)} indices"
            yield Problem(path, None, submission_id, message)


def _row_faults(row: ScannedRow, expected: Mapping[str, int | None]) -> list[str]:
    if row.ranking is None or row.id not in expected:
        return ["no graph of this split has this ID; expected no such row"]
    n_configs = expected[row.id]
    if n_configs is None:
        # Fewer than five picks stand for a kernel that has no more configs.
        n_picked = min(len(row.ranking), TILE_PICKS)
        n_configs = n_picked if n_picked < TILE_PICKS else ALL_TILE_CONFIGS
        return ranking_faults(row.ranking, n_configs, n_picked)
    as_sampled = TILE_PICKS if row.id.startswith("tile:") else LAYOUT_CONFIGS
    if row.id in official_rows() and len(row.ranking) == as_sampled:
        return ranking_faults(row.ranking, max(n_configs, as_sampled), as_sampled)
    return ranking_faults(row.ranking, n_configs, _wanted(row.id, n_configs))


def _wanted(submission_id: str, n_configs: int | None) -> int:
    found = split_id(submission_id)
    assert found is not None, submission_id  # the caller expects an ID that names no collection
    return n_picks(found[0], TILE_PICKS if n_configs is None else n_configs)
