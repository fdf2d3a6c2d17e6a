"""The check that a submission must pass before it is sent to the competition."""

from pathlib import Path

from common.errors import PipelineError
from common.settings import SAMPLE, default_data_dir
from data.tree import find_graphs, npz_root
from submissions.check import (
    Problem,
    all_official,
    check_official,
    check_submission,
    expected_rows,
    official_rows,
)


def problems_before_upload(path: Path, data: Path | None) -> list[Problem]:
    """List what is wrong with a submission; an empty list means that Kaggle can score it.

    The competition's known rules hold for every file, with the exact number of configs of those of
    its test graphs that are at hand. Where the data holds other test graphs, those count as well,
    so that a file of other data is refused with a line that says so.

    Args:
        path: the submission.
        data: the folder that was given; None = the dataset where it is found, never the sample.

    Raises:
        PipelineError: the data was given and is not there, or is damaged.
    """
    folder = data or _dataset()
    known = expected_rows(folder, "test") if folder and _has_test_graphs(folder) else {}
    if all_official(known):
        return check_official(path, known)
    if not check_submission(path, known):
        return [_problem(path, f"answers the test graphs of {folder}, not the competition's")]
    official = {name: n_configs for name, n_configs in known.items() if name in official_rows()}
    return check_official(path, official) or [
        _problem(path, f"does not answer the test graphs of {folder}; name the right --data")
    ]


def _problem(path: Path, message: str) -> Problem:
    return Problem(path, None, None, message)


def _dataset() -> Path | None:
    """Return the dataset's folder, if it is found without being named."""
    try:
        folder = default_data_dir()
    except PipelineError:
        return None
    return None if folder == SAMPLE else folder


def _has_test_graphs(folder: Path) -> bool:
    npz_root(folder)
    try:
        return bool(find_graphs(folder, splits=("test",)))
    except PipelineError:  # it has the tree, but no such graph
        return False
