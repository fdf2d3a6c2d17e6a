"""Check a submission against the graphs it must answer for, before anybody uploads it.

The competition's sample submission lists 1000 indices for every layout graph and five for every
tile kernel; in truth two layout graphs have 1001 configs and sixteen kernels fewer than five. The
counts here are those of the data files.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError
from common.metrics import TILE_PICKS
from data.npz.read import Archive
from data.official.config_counts import ALL_TILE_CONFIGS
from data.tree import find_graphs
from submissions.plain_text import text_faults
from submissions.write import ScannedRow, n_picks, scan_submission, split_id


class Problem(NamedTuple):
    """One thing that is wrong; `str()` gives it as one line.

    Attributes:
        file: the submission.
        row: line number, the header being row 1; None for what concerns no line.
        id: the submission ID, or None.
        message: what was found and what was expected.
    """

    file: Path
    row: int | None
    id: str | None
    message: str

    def __str__(self) -> str:
        row = None if self.row is None else f"row {self.row}"
        parts = (str(self.file), row, self.id, self.message)
        return ": ".join(part for part in parts if part is not None)


def check_submission(path: Path, expected: Mapping[str, int | None]) -> list[Problem]:
    """List all that is wrong with a submission file; an empty list means it can be uploaded.

    Found: an unreadable file or line, one that only this project's own reader would take (see
    `submissions.plain_text`), missing, surplus and repeated rows, and rankings with a
    wrong count, an index out of range or a repeated index. The order of the rows is free, because
    they are matched by ID.

    Args:
        path: the submission.
        expected: c, the number of configs, by submission ID; see `expected_rows`. None for a tile
            kernel whose number is not known: any picks that some kernel may have are accepted.

    Returns:
        The problems: of the text, of the rows by line, the missing rows last.
    """
    problems: list[Problem] = []
    first_row: dict[str, int] = {}
    try:
        problems += [Problem(path, row, None, fault) for row, fault in text_faults(path)]
        for row in scan_submission(path):
            problems += [
                Problem(path, row.row, row.id if row.fault is None else None, message)
                for message in _row_faults(row, expected, first_row)
            ]
            first_row.setdefault(row.id, row.row)
    except PipelineError as error:
        message = str(error).removeprefix(f"{path}: ")
        return [Problem(path, None, None, message)]
    for submission_id in expected:
        if submission_id not in first_row:
            wanted = _wanted(submission_id, expected[submission_id])
            problems.append(
                Problem(path, None, submission_id, f"row is missing; expected {wanted} indices")
            )
    return problems


def ranking_faults(ranking: NDArray[np.int64], n_configs: int, n_indices: int) -> list[str]:
    """Say what keeps `ranking` from being `n_indices` distinct ones of 0..c-1.

    Args:
        ranking: (m,) int64 config indices.
        n_configs: c.
        n_indices: how many indices there must be.

    Returns:
        One message per kind of fault; empty if there is none.
    """
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


def picks_faults(ranking: NDArray[np.int64]) -> list[str]:
    """Say what keeps `ranking` (m,) from being the picks of a kernel of unknown c.

    Five picks may be any configs; fewer stand for a kernel that has no more, so they are all of
    0..m-1.
    """
    n_indices = len(ranking)
    if n_indices < TILE_PICKS:
        return ranking_faults(ranking, n_indices, n_indices)
    faults = []
    if n_indices > TILE_PICKS:
        faults.append(f"has {n_indices} indices; expected {TILE_PICKS}")
    if ranking.max() >= ALL_TILE_CONFIGS:
        faults.append(
            f"index {ranking.max()}; expected one below {ALL_TILE_CONFIGS}: all kernels together "
            "have no more configs"
        )
    if ranking.min() < 0:
        faults.append(f"index {ranking.min()}; expected 0 or more")
    if len(np.unique(ranking)) < n_indices:
        faults.append("an index is repeated; expected each config once")
    return faults


def expected_rows(data_dir: Path, split: str) -> dict[str, int]:
    """Return the number of configs of each graph of a split, by submission ID.

    Args:
        data_dir: the folder that holds npz/.
        split: "train", "valid" or "test".

    Raises:
        PipelineError: the split has no graph, or a file is damaged.
    """
    files = find_graphs(data_dir, splits=(split,))
    return {file.submission_id: count_configs(file.path) for file in files}


def count_configs(path: Path) -> int:
    """Read c, the number of configs, from an npz file without reading the configs.

    Raises:
        PipelineError: the file is damaged, or holds no runtimes (c,) int64.
    """
    with Archive(path) as archive:
        (n_configs,) = archive.header("config_runtime", dtype=np.int64, shape=(None,)).shape
        if n_configs == 0:
            archive.fail("config_runtime", "has zero configs; expected at least one")
    return n_configs


def _row_faults(
    row: ScannedRow, expected: Mapping[str, int | None], first_row: Mapping[str, int]
) -> list[str]:
    """Say what is wrong with one line, given where each ID was first seen."""
    faults = []
    if row.id in first_row:
        faults.append(f"comes twice, first in row {first_row[row.id]}; expected one row per graph")
    if row.ranking is None:
        return [*faults, row.fault or "cannot be read"]
    if row.id not in expected:
        return [*faults, "no graph of this split has this ID; expected no such row"]
    n_configs = expected[row.id]
    if n_configs is None:
        return faults + picks_faults(row.ranking)
    return faults + ranking_faults(row.ranking, n_configs, _wanted(row.id, n_configs))


def _wanted(submission_id: str, n_configs: int | None) -> int:
    """Return how many indices a row must hold; where c is not known, as if there were enough.

    Raises:
        ValueError: the caller expects an ID that names no collection.
    """
    found = split_id(submission_id)
    if found is None:
        raise ValueError(f"expected row '{submission_id}' names no collection")
    return n_picks(found[0], TILE_PICKS if n_configs is None else n_configs)


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""
