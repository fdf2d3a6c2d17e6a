"""Labels are read per split, another split's submission is told so; ceilings in the report."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import PipelineError
from common.metrics import ranking_from_scores
from data.withheld import WITHHELD, write_withheld
from submissions.score import Labels, read_labels, score_submission
from tests.command_line import call, stderr_of
from tests.submissions.made_up import ints, noisy_submission, place_npz, write_graph

X = "layout:xla:default"


def test_labels_are_read_per_split(tmp_path: Path) -> None:
    place_npz(tmp_path, "layout/nlp/random/valid", "g", config_runtime=ints(3, 2))
    place_npz(tmp_path, "layout/nlp/random/train", "g", config_runtime=ints(9, 9))
    tile = {"config_runtime": ints(6, 8), "config_runtime_normalizers": ints(3, 2)}
    place_npz(tmp_path, "tile/xla/valid", "g", **tile)
    labels = read_labels(tmp_path, "valid")
    assert list(labels) == ["tile:xla:g", "layout:nlp:random:g"]
    assert labels["layout:nlp:random:g"].runtime.tolist() == [3, 2]
    assert labels["layout:nlp:random:g"].normalizers is None
    assert labels["tile:xla:g"].runtime.tolist() == [2, 4]
    with pytest.raises(PipelineError, match=r"no graph of .* found"):
        read_labels(tmp_path, "test")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"config_runtime": ints(1, 2)}, "config_runtime_normalizers' is missing"),
        (
            {"config_runtime": ints(1, 2), "config_runtime_normalizers": ints(1, 0)},
            "row 1 is 0; expected a runtime above 0",
        ),
        (
            {"config_runtime": ints(5, 0), "config_runtime_normalizers": ints(1, 1)},
            "row 1 is 0; expected a runtime above 0",
        ),
        ({"config_runtime": ints()}, "zero configs"),
    ],
)
def test_bad_labels_are_named(
    tmp_path: Path, arrays: dict[str, NDArray[np.generic]], message: str
) -> None:
    path = place_npz(tmp_path, "tile/xla/valid", "g", **arrays)
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


TO_TEST = "answers the graphs of split test, not valid; expected the run's submission for valid"


@pytest.mark.parametrize(
    ("file", "options", "said"),
    [
        ("submission.csv", (), TO_TEST),
        ("submission-valid.csv", ("--private",), "split valid, not test; expected"),
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


def test_the_check_names_another_split_in_one_line(tree: Path) -> None:
    path = tree / "submission-valid.csv"
    told = stderr_of("submission", "check", path, "--data", tree, expect=1)
    assert len(told) == 1 and "answers the graphs of split valid, not test" in told[0]


# Noise ceilings


def test_the_report_holds_each_graph_s_and_the_median_of_those_known() -> None:
    rng = np.random.default_rng(0)
    names = [f"layout:xla:default:{i}" for i in range(5)] + ["layout:nlp:random:n", "tile:xla:k"]
    labels = {name: Labels(rng.permutation(9) + 1) for name in names}
    labels["layout:xla:default:4"] = Labels(np.full(9, 5))  # no order: not judged
    rankings = {name: ranking_from_scores(rng.random(9)) for name in names}
    taus = (0.9, 0.2, float("nan"), 0.8, 0.1)
    ceilings = dict(zip(names, taus, strict=False)) | {"tile:xla:k": 0.5}
    plain = score_submission(rankings, labels)
    report = score_submission(rankings, labels, ceilings=ceilings)
    part = report["collections"]["layout:xla:default"]
    assert [g["noise_ceiling"] for g in part["per_graph"].values()] == [0.9, 0.2, None, 0.8]
    assert part["noise_ceiling"] == 0.8
    assert report["collections"]["layout:nlp:random"]["noise_ceiling"] is None
    assert report["collections"]["layout:nlp:default"]["noise_ceiling"] is None
    assert report["collections"]["tile:xla"] == plain["collections"]["tile:xla"]
    assert "noise_ceiling" not in str(plain)
    assert report["score"] == plain["score"]
