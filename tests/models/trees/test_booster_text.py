"""A model file that LightGBM would follow out of its arrays is refused before it gets it."""

import re
from collections.abc import Callable
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from common.errors import PipelineError
from models.trees.boosting import read_booster
from tests.support.boosters import NAMES, booster_text, rows


def read(text: str, folder: Path) -> lightgbm.Booster:
    (folder / "booster.txt").write_text(text)
    return read_booster(folder / "booster.txt", NAMES)


def first(key: str, value: str) -> Callable[[str], str]:
    return lambda text: re.sub(rf"(?m)^{key}=\S+", f"{key}={value}", text, count=1)


@pytest.mark.parametrize("is_constant", [False, True])
def test_scores_are_those_of_the_file(is_constant: bool, tmp_path: Path) -> None:
    text, x = booster_text(is_constant=is_constant), rows()
    found = read(first("tree_sizes", "9999999")(text), tmp_path)
    assert found.num_trees() == (1 if is_constant else 3)
    assert found.feature_name() == NAMES
    np.testing.assert_array_equal(
        found.predict(x), lightgbm.Booster(model_str=text).predict(x, raw_score=True)
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (first("left_child", "90000000"), "a child is out of range, or comes before its parent"),
        (first("right_child", "0"), "a child is out of range, or comes before its parent"),
        (lambda text: re.sub(r"_child=.*", "_child=1 2 3 -1", text), "two nodes have the same chi"),
        (first("split_feature", "4"), "a split reads no feature that is there, or is not numeri"),
        (first("decision_type", "1"), "a split reads no feature that is there, or is not numeri"),
        (first("decision_type", "2 2"), "fields of trees are missing, or their lengths do not"),
        (lambda text: text.replace("threshold=", "x=", 1), "fields of trees are missing, or their"),
        (lambda text: re.sub(r"(?s)Tree=.*(?=end of trees)", "", text), "num_cat is not 0 every"),
        (first("leaf_value", "nan"), "expected numbers alone"),
        (first("leaf_value", "1e999"), "a number is not finite"),
        (first("left_child", "1" * 40), "too large"),
        (first("num_cat", "1"), "num_cat is not 0 everywhere"),
        (first("max_feature_idx", "9"), "max_feature_idx is not 3 everywhere"),
        (lambda text: text.replace("tree", "träd", 1), "can't decode|ordinal not in range"),
    ],
)
def test_a_number_out_of_range_is_named(
    damage: Callable[[str], str], message: str, tmp_path: Path
) -> None:
    text = booster_text()
    assert damage(text) != text
    with pytest.raises(PipelineError, match=rf"booster\.txt: not a LightGBM model: .*{message}"):
        read(damage(text), tmp_path)


def test_a_tree_may_be_a_long_chain(tmp_path: Path) -> None:
    n, text = 50_000, booster_text()
    own = {
        "num_leaves": [n + 1],
        "split_feature": [0] * n,
        "decision_type": [2] * n,
        "threshold": [0.5] * n,
        "left_child": [*range(1, n), ~n],
        "right_child": [~i for i in range(n)],
        "leaf_value": [1] * (n + 1),
    }
    for key, values in own.items():
        text = re.sub(rf"(?m)^{key}=.*", f"{key}={' '.join(map(str, values))}", text, count=1)
    assert np.isfinite(read(text, tmp_path).predict(rows())).all()
