"""A submission of another split is told by that split's name, with what to pass."""

from pathlib import Path

import numpy as np
import pytest

from data.withheld import WITHHELD, write_withheld
from tests.command_line import call
from tests.submissions.made_up import noisy_submission, write_graph

X = "layout:xla:default"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    valid, _ = write_graph(tmp_path, X, "valid", "v", seed=0)
    test, _ = write_graph(tmp_path, X, "test", "t", seed=1, labelled=False)
    write_withheld(tmp_path / WITHHELD, {f"{X}:t": test})
    noisy_submission(tmp_path / "submission-valid.csv", {f"{X}:v": valid}, seed=0)
    noisy_submission(tmp_path / "submission.csv", {f"{X}:t": test}, seed=0)
    noisy_submission(tmp_path / "other.csv", {f"{X}:o": np.arange(1, 9)}, seed=0)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "options", "said"),
    [
        (
            "submission.csv",
            (),
            "answers the graphs of split test, not valid; pass --private (the withheld test "
            "runtimes), or the run's submission-valid.csv",
        ),
        (
            "submission.csv",
            ("--split", "train"),
            "answers the graphs of split test, not train; pass --private (the withheld test "
            "runtimes)",
        ),
        (
            "submission-valid.csv",
            ("--private",),
            "answers the graphs of split valid, not test; pass --split valid without --private, "
            "or the run's submission.csv",
        ),
        (
            "submission-valid.csv",
            ("--split", "test"),
            "answers the graphs of split valid, not test; pass --split valid, "
            "or the run's submission.csv",
        ),
        ("other.csv", (), f"{X}:v: row is missing; expected 60 indices"),
    ],
)
def test_another_splits_rankings_are_named(
    tree: Path, file: str, options: tuple[str, ...], said: str
) -> None:
    if "train" in options:
        write_graph(tree, X, "train", "r", seed=2)
    path = tree / file
    text = call("score", "--submission", path, "--data", tree, *options, expect=1)
    assert text == f"error: {path}: {said}\n"


def test_where_nothing_was_withheld_the_split_is_to_be_passed(tree: Path) -> None:
    (tree / WITHHELD).unlink()
    text = call("score", "--submission", tree / "submission.csv", "--data", tree, expect=1)
    assert "pass --split test, or the run's submission-valid.csv" in text


def test_withheld_runtimes_alone_tell_the_split(tree: Path) -> None:
    (tree / "npz/layout/xla/default/test/t.npz").unlink()
    text = call("score", "--submission", tree / "submission.csv", "--data", tree, expect=1)
    assert "answers the graphs of split test, not valid; pass --private" in text
