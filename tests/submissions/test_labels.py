"""Labels are read per split, and a submission of another split is told what to pass."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from data.withheld import WITHHELD, write_withheld
from submissions.labels import read_labels
from tests.command_line import call
from tests.submissions.made_up import noisy_submission, write_graph

X = "layout:xla:default"


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def place_npz(folder: Path, collection: str, **arrays: NDArray[np.generic]) -> Path:
    path = folder / "npz" / collection / "g.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


def test_labels_are_read_per_split(tmp_path: Path) -> None:
    place_npz(tmp_path, "layout/nlp/random/valid", config_runtime=ints(3, 2))
    place_npz(tmp_path, "layout/nlp/random/train", config_runtime=ints(9, 9))
    place_npz(
        tmp_path,
        "tile/xla/valid",
        config_runtime=ints(6, 8),
        config_runtime_normalizers=ints(3, 2),
    )
    labels = read_labels(tmp_path, "valid")
    assert list(labels) == ["tile:xla:g", "layout:nlp:random:g"]
    assert labels["layout:nlp:random:g"].runtime.tolist() == [3, 2]
    assert labels["layout:nlp:random:g"].normalizers is None
    assert labels["tile:xla:g"].runtime.tolist() == [2, 4]
    with pytest.raises(PipelineError, match="no graph found"):
        read_labels(tmp_path, "test")


def test_withheld_runtimes_are_read_as_such(tmp_path: Path) -> None:
    zeros, ones = ints(0, 0), ints(1, 1)
    place_npz(tmp_path, "tile/xla/test", config_runtime=zeros, config_runtime_normalizers=ones)
    labels = read_labels(tmp_path, "test")["tile:xla:g"]
    assert not labels.is_labelled
    assert labels.runtime.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"config_runtime": ints(1, 2)}, "config_runtime_normalizers' is missing"),
        (
            {"config_runtime": ints(1, 2), "config_runtime_normalizers": ints(1, 0)},
            "row 1 is 0; expected a runtime above 0",
        ),
        ({"config_runtime": ints(1, 2), "config_runtime_normalizers": ints(1)}, "shape"),
        ({"config_runtime": ints(5, 0)}, "row 1 is 0; expected a runtime above 0"),
        ({"config_runtime": ints(-5, 1)}, "row 0 is -5"),
        ({"config_runtime": ints()}, "zero configs"),
        ({"config_runtime": np.array([1.0])}, "dtype"),
        ({"other": ints(1)}, "'config_runtime' is missing"),
    ],
)
def test_bad_labels_are_named(
    tmp_path: Path, arrays: dict[str, NDArray[np.generic]], message: str
) -> None:
    path = place_npz(tmp_path, "tile/xla/valid", **arrays)
    with pytest.raises(PipelineError, match=message) as raised:
        read_labels(tmp_path, "valid")
    assert str(path) in str(raised.value)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    valid, _ = write_graph(tmp_path, X, "valid", "v", seed=0)
    test, _ = write_graph(tmp_path, X, "test", "t", seed=1, labelled=False)
    write_withheld(tmp_path / WITHHELD, {f"{X}:t": test})
    noisy_submission(tmp_path / "submission-valid.csv", {f"{X}:v": valid}, seed=0)
    noisy_submission(tmp_path / "submission.csv", {f"{X}:t": test}, seed=0)
    noisy_submission(tmp_path / "other.csv", {f"{X}:o": np.arange(1, 9)}, seed=0)
    return tmp_path


TO_TEST = "answers the graphs of split test, not valid; pass --split test or, for withheld runtimes"


@pytest.mark.parametrize(
    ("file", "options", "said"),
    [
        ("submission.csv", (), TO_TEST),
        ("submission-valid.csv", ("--private",), "split valid, not test; pass --split valid, or"),
        ("submission-valid.csv", ("--split", "test"), "split valid, not test; pass --split valid"),
        ("other.csv", (), f"{X}:v: row is missing; expected 60 indices"),
    ],
)
def test_another_splits_rankings_are_named(
    tree: Path, file: str, options: tuple[str, ...], said: str
) -> None:
    path = tree / file
    text = call("score", "--submission", path, "--data", tree, *options, expect=1)
    assert text.startswith(f"error: {path}: ") and text.count("\n") == 1
    assert said in text
