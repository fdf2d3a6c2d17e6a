"""What a submission must pass before it is sent to the competition."""

import os
from pathlib import Path

from common.errors import PipelineError
from common.settings import SAMPLE, default_data_dir
from data.tree import find_graphs, npz_root
from submissions.check import (
    Problem,
    check_submission,
    expected_rows,
    official_rows,
)


def problems_before_upload(path: Path, data: Path | None) -> list[Problem]:
    """List what is wrong with a submission; an empty list means that Kaggle can score it.

    The competition's known rules hold for every file, with the exact number of configs of those of
    its test graphs that are at hand.

    Args:
        data: the folder that was given; None = the dataset where it is found, never the sample.

    Raises:
        PipelineError: the data was given and is not there, or is damaged.
    """
    folder = data or _dataset()
    known = expected_rows(folder, "test") if folder and _has_test_graphs(folder) else {}
    official = official_rows()
    if official.keys() >= known.keys():
        problems = check_submission(path, {**official, **known})
        of_sample = expected_rows(SAMPLE, "test") if problems and SAMPLE.is_dir() else {}
        if of_sample and not check_submission(path, of_sample):
            return [_problem(path, "answers the embedded sample, not the competition's graphs")]
        return problems
    if not check_submission(path, known):
        return [_problem(path, f"answers the test graphs of {folder}, not the competition's")]
    rows = {name: known.get(name, n_configs) for name, n_configs in official.items()}
    return check_submission(path, rows) or [
        _problem(path, f"does not answer the test graphs of {folder}; name the right --data")
    ]


def _problem(path: Path, message: str) -> Problem:
    return Problem(path, None, None, message)


def _dataset() -> Path | None:
    try:
        folder = default_data_dir()
    except PipelineError:
        if os.environ.get("PIPELINE_DATA"):
            raise
        return None
    return None if folder == SAMPLE else folder


def _has_test_graphs(folder: Path) -> bool:
    npz_root(folder)
    try:
        return bool(find_graphs(folder, splits=("test",)))
    except PipelineError:  # it has the tree, but no such graph
        return False
