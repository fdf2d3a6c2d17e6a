"""Which split a submission answers, where it is not the one that it shall be judged by."""

from collections.abc import Collection as Container
from pathlib import Path

from common.errors import PipelineError
from data.tree import SPLITS, find_graphs
from data.withheld import WITHHELD, read_withheld

FILES = {"valid": "submission-valid.csv", "test": "submission.csv"}


def check_split(
    answered: Container[str], judged: Container[str], data_dir: Path, *, split: str, private: bool
) -> None:
    """Refuse rankings of another split's graphs.

    Args:
        answered: submission IDs that rankings were given for.
        judged: submission IDs of the graphs to judge by.
        data_dir: the folder that holds npz/.
        split: the one that was asked for.
        private: whether the withheld test runtimes were asked for.

    Raises:
        PipelineError: no graph is answered, but those of another split are; says what to pass.
    """
    if any(name in judged for name in answered):
        return
    asked = "test" if private else split
    for other in SPLITS:
        if other != asked and not _ids(data_dir, other).isdisjoint(answered):
            ways = [_options(data_dir, other, private=private)]
            if asked in FILES:
                ways.append(f"or the run's {FILES[asked]}")
            raise PipelineError(
                f"submission: answers the graphs of split {other}, not {asked}; "
                f"pass {', '.join(ways)}"
            )


def _ids(data_dir: Path, split: str) -> set[str]:
    """Return the submission IDs of a split's graphs; none if there is no such split."""
    ids = set(read_withheld(data_dir)) if split == "test" and _has_withheld(data_dir) else set()
    try:
        return ids | {file.submission_id for file in find_graphs(data_dir, splits=(split,))}
    except PipelineError:
        return ids


def _options(data_dir: Path, split: str, *, private: bool) -> str:
    if split == "test" and _has_withheld(data_dir):
        return "--private (the withheld test runtimes)"
    return f"--split {split}{' without --private' if private else ''}"


def _has_withheld(data_dir: Path) -> bool:
    return (data_dir / WITHHELD).is_file()
