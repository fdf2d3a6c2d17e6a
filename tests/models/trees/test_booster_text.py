"""A damaged booster is refused before LightGBM reads it, because LightGBM would end the process."""

import subprocess
import sys
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from common.errors import PipelineError
from common.settings import ROOT
from models.trees.boosting import read_booster

NAMES = ["a", "b", "c"]
ROWS = np.random.default_rng(0).random((400, 3))


def booster_text(objective: str = "lambdarank", **parameters: object) -> str:
    """Train three small trees, and return their text."""
    settings = {"objective": objective, "verbose": -1, "num_leaves": 6, **parameters}
    labels = (ROWS[:, 0] * 8).astype(int)
    data = lightgbm.Dataset(ROWS, labels, group=[200, 200], feature_name=NAMES, params=settings)
    return lightgbm.train(settings, data, 3).model_to_string()


def squared(scores: np.ndarray, data: lightgbm.Dataset) -> tuple[np.ndarray, np.ndarray]:
    return scores - data.get_label(), np.ones(len(scores))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"objective": squared},
        {"objective": squared, "learning_rate": 1e30},
        {"min_data_in_leaf": 300, "feature_pre_filter": False},
        {"objective": "regression", "boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.7},
    ],
)
def test_checked_booster_scores_as_the_whole_one(
    parameters: dict[str, object], tmp_path: Path
) -> None:
    path, text = tmp_path / "booster.txt", booster_text(**parameters)
    path.write_text(text)
    expected = lightgbm.Booster(model_str=text).predict(ROWS)
    np.testing.assert_array_equal(read_booster(path, NAMES).predict(ROWS), expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tree\nversion=v4", "tree\nversion=v9"),
        ("num_class=1", "num_class=1000000000"),
        ("max_feature_idx=2", "max_feature_idx=99999999"),
        ("objective=lambdarank", "objective=multiclass num_class:1000000000"),
        ("tree_sizes=", "tree_sizes=99999999 "),
        ("tree_sizes=", "tree_sizes=-1 "),
        ("num_leaves=6", "num_leaves=600000000"),
        ("num_leaves=6", "num_leaves=-6"),
        ("num_cat=0", "num_cat=1"),
        ("split_feature=0", "split_feature=9"),
        ("decision_type=2", "decision_type=1"),
        ("left_child=1", "left_child=0"),
        ("left_child=1", "left_child=77"),
        ("left_child=1", "left_child=-77"),
        ("leaf_value=", "leaf_value=1 "),
        ("threshold=", "threshold=x"),
        ("is_linear=0", "is_linear=1"),
        ("shrinkage=", "shrunk="),
        ("end of trees", "end of tree"),
        ("leaf_count=", "leaf_count=99999999999999999999 "),
    ],
)
def test_wrong_number_is_refused(old: str, new: str, tmp_path: Path) -> None:
    path, text = tmp_path / "booster.txt", booster_text()
    assert old in text
    changed = text.replace(old, new)
    if "tree_sizes" not in old:
        trees = changed.partition("\n\n")[2].partition("end of tree")[0].split("Tree=")[1:]
        sizes = " ".join(str(len(tree) + len("Tree=")) for tree in trees)
        before, _, rest = changed.partition("tree_sizes=")
        changed = f"{before}tree_sizes={sizes}{rest[rest.index(chr(10)) :]}"
    path.write_text(changed)
    with pytest.raises(PipelineError, match=r"booster\.txt: not a LightGBM model"):
        read_booster(path, NAMES)


FLIPS = """
import sys
from pathlib import Path
import lightgbm
import numpy as np
from models.trees.booster_text import checked_trees
text, rng, n_refused = Path(sys.argv[1]).read_bytes(), np.random.default_rng(0), 0
end = text.index(b"end of trees")
for _ in range(400):
    content = bytearray(text)
    for place in rng.integers(end, size=rng.integers(1, 4)):
        content[place] = rng.choice([*b"0123456789 -.e\\n="]) if rng.random() < 0.8 else 255
    try:
        booster = lightgbm.Booster(model_str=checked_trees(content.decode()))
        booster.predict(rng.random((5, 3)), num_threads=1)
    except (ValueError, LookupError, lightgbm.basic.LightGBMError):
        n_refused += 1
print(n_refused)
"""


def test_no_flipped_byte_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "booster.txt"
    path.write_text(booster_text())
    command = [sys.executable, "-c", FLIPS, path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 40 < int(done.stdout.split()[-1]) < 380
