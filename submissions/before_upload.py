"""The check that a submission must pass before it is sent to the competition."""

from collections.abc import Sequence
from pathlib import Path

from data.errors import PipelineError
from data.tree import find_graphs, npz_root
from settings import SAMPLE, default_data_dir
from submissions.check import Problem, check_submission, expected_rows
from submissions.official_rules import all_official, check_official


def problems_before_upload(path: Path, data: Path | None) -> tuple[Sequence[Problem], bool]:
    """List what is wrong with a submission, and tell whether the competition's rules were applied.

    Where the data's test graphs are those of the competition, or some of them, the competition's
    known rules hold, with the exact number of configs of the graphs at hand; of other data, those
    graphs alone. Without data, or without test graphs in it, the competition's rules hold.

    Args:
        path: the submission.
        data: the folder that was given; None = the dataset where it is found, never the sample.

    Raises:
        PipelineError: the data was given and is not there, or is damaged.
    """
    folder = data or _dataset()
    known = expected_rows(folder, "test") if folder and _has_test_graphs(folder) else {}
    if all_official(known):
        return check_official(path, known), True
    return check_submission(path, known), False


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
