"""Check a submission against the graphs it must answer for, before anybody uploads it.

The counts are those of the data files. For the real competition, 894 rows by the names of the
official test split, they are known without its files but for those of tile kernels. Its own sample
submission, which Kaggle scores, lists 1000 indices for every layout graph and five for every tile
kernel; in truth two layout graphs have 1001 configs and sixteen kernels fewer than five. Both are
accepted.
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Collection as Container
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, escaped
from common.metrics import TILE_PICKS
from common.settings import SAMPLE
from data.npz.archive import Archive
from data.official.published import (
    ALL_TILE_CONFIGS,
    LAYOUT_CONFIGS,
    OTHER_LAYOUT_CONFIGS,
    official_names,
)
from data.tree import COLLECTIONS, find_graphs, npz_root
from submissions.write import n_picks, scan_submission, shown, split_id

MAX_PROBLEMS = 1000  # more than the competition has rows

Rows = Mapping[str, int | None]


def check_submission(path: Path, expected: Rows) -> list[str]:
    """List what is wrong with a submission file, a line each; an empty list means that it is good.

    Found: an unreadable file or line, missing, surplus and repeated rows, and rankings with a wrong
    count, an index out of range or a repeated index. The order of the rows is free.

    Args:
        expected: c, the number of configs, by submission ID. None for a tile kernel whose number is
            not known: any picks that some kernel may have are accepted.
    """
    try:
        problems = list(islice(_problems(path, expected), MAX_PROBLEMS + 1))
    except PipelineError as error:
        return [str(error)]
    if len(problems) > MAX_PROBLEMS:
        problems[-1] = f"has more than {MAX_PROBLEMS} problems; the others are not listed"
    return [escaped(f"{path}: {problem}") for problem in problems]


@cache
def official_rows() -> Rows:
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
    rows = {}
    for file in find_graphs(data_dir, splits=(split,)):
        with Archive(file.path) as archive:
            (n_configs,) = archive.header("config_runtime", dtype=np.int64, shape=(None,)).shape
            if n_configs == 0:
                archive.fail("config_runtime", "has zero configs; expected at least one")
        rows[file.submission_id] = n_configs
    return rows


def problems_with_data(path: Path, data_dir: Path, split: str) -> tuple[list[str], Rows]:
    """List what is wrong with a file that answers a split of a folder, and the rows expected of it.

    A file that answers other test graphs of the competition than the folder has must answer all of
    the competition's.

    Raises:
        PipelineError: the split has no graph, a file is damaged, or another split is answered.
    """
    expected = expected_rows(data_dir, split)
    problems = check_submission(path, expected)
    if not problems:
        return [], expected
    answered = {row[0] for _, row in scan_submission(path)}
    if split == "test" and answered & (official_rows().keys() - expected.keys()):
        every = {name: expected.get(name, n) for name, n in official_rows().items()}
        return check_submission(path, every), every
    check_split(path, answered, expected, data_dir, split=split)
    return problems, expected


def problems_before_upload(path: Path, data_dir: Path) -> list[str]:
    """List why Kaggle cannot score a submission, as `problems_with_data` does; empty if it can.

    Raises:
        PipelineError: as `problems_with_data`, but a folder may have no test graphs.
    """
    has_graphs = any(npz_root(data_dir).rglob("test/*.npz"))
    folder = data_dir if has_graphs else SAMPLE
    problems, rows = problems_with_data(path, folder, "test")
    if not problems and rows.keys() != official_rows().keys():
        return [f"{path}: answers the test graphs of {folder}, not the competition's"]
    return problems


def check_split(
    path: Path,
    answered: Container[str],
    judged: Container[str],
    data_dir: Path,
    *,
    split: str,
    to_pass: Callable[[str], str] = "--split {}".format,
) -> None:
    """Refuse rankings of another split's graphs.

    Args:
        to_pass: says by which option another split is asked for.

    Raises:
        PipelineError: no graph is answered, but those of another split are; says what to pass.
    """
    if any(name in judged for name in answered):
        return
    for file in find_graphs(data_dir):
        if file.split != split and file.submission_id in answered:
            told = f"answers the graphs of split {file.split}, not {split}; expected the run's"
            raise PipelineError(f"{path}: {told} submission for {split}, or {to_pass(file.split)}")


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


def _problems(path: Path, expected: Rows) -> Iterator[str]:
    first_row: dict[str, int] = {}
    for row, (submission_id, ranking, fault) in scan_submission(path):
        place = f"row {row}: {shown(submission_id)}"
        if submission_id in first_row:
            first = first_row[submission_id]
            yield f"{place}: comes twice, first in row {first}; expected one row per graph"
        elif submission_id:
            first_row[submission_id] = row
        if ranking is None:
            yield f"row {row}: {fault}"
        elif submission_id not in expected:
            yield f"{place}: no graph of this split has this ID; expected no such row"
        else:
            faults = _faults(submission_id, ranking, expected[submission_id])
            yield from (f"{place}: {each}" for each in faults)
    for submission_id, n_configs in expected.items():
        if submission_id not in first_row:
            wanted = _wanted(submission_id, n_configs)
            yield f"{submission_id}: row is missing; expected {wanted} indices"


def _faults(submission_id: str, ranking: NDArray[np.int64], n_configs: int | None) -> list[str]:
    if n_configs is None:
        # Fewer than five picks stand for a kernel that has no more configs.
        n_picked = min(len(ranking), TILE_PICKS)
        n_at_most = n_picked if n_picked < TILE_PICKS else ALL_TILE_CONFIGS
        return ranking_faults(ranking, n_at_most, n_picked)
    as_sampled = TILE_PICKS if submission_id.startswith("tile:") else LAYOUT_CONFIGS
    if submission_id in official_rows() and len(ranking) == as_sampled:
        return ranking_faults(ranking, max(n_configs, as_sampled), as_sampled)
    return ranking_faults(ranking, n_configs, _wanted(submission_id, n_configs))


def _wanted(submission_id: str, n_configs: int | None) -> int:
    collection, _ = split_id(submission_id)
    return n_picks(collection, TILE_PICKS if n_configs is None else n_configs)
