"""Check the text of a booster before LightGBM reads it.

LightGBM trusts the numbers of a text. If an index or a length is wrong, it ends the whole process,
reads foreign memory or never ends.
"""

import re

_FIXED = {"version": "v4", "num_class": "1", "num_tree_per_iteration": "1", "label_index": "0"}
# A custom objective has no such line.
_OBJECTIVES = ("lambdarank", "regression", None)
# A random forest has this line, because its score is the mean of its trees.
_FOREST = "average_output"
_TREE_FIXED = {"num_cat": "0", "is_linear": "0"}
_LEAF_KEYS = ("leaf_value", "leaf_weight", "leaf_count")
_WHOLE = ("split_feature", "decision_type", "left_child", "right_child")
_WHOLE_COUNTS = ("internal_count", "leaf_count")
_SPLIT_KEYS = (*_WHOLE, "split_gain", "threshold", "internal_value", "internal_weight")
_ARRAYS = {*_LEAF_KEYS, *_SPLIT_KEYS, "internal_count"}
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_NUMBER = re.compile(r"-?([0-9]{1,400}(\.[0-9]{1,400})?(e[-+]?[0-9]{1,3})?|inf|nan)")
_RANGE = re.compile(rf"none|\[{_NUMBER.pattern}:{_NUMBER.pattern}\]")
_END = "end of trees\n"


def checked_trees(text: str) -> str:
    """Return the part of a booster's text that has its trees, without the parameters of training.

    Raises:
        ValueError: The text is damaged.
    """
    head, _, _ = text.partition("\n\n")
    first, *lines = head.split("\n")
    keys = _table([line for line in lines if line != _FOREST])
    names, ranges = keys.pop("feature_names").split(" "), keys.pop("feature_infos").split(" ")
    sizes = _numbers(keys.pop("tree_sizes"), _INTEGER)
    _require(first == "tree" and text.isascii(), "its first line or its characters")
    _require(keys.pop("objective", None) in _OBJECTIVES, "its objective")
    _require(keys == _FIXED | {"max_feature_idx": str(len(names) - 1)}, "its head")
    _require(len(ranges) == len(names) and all(map(_RANGE.fullmatch, ranges)), "feature_infos")
    start = len(head) + 2
    for number, size in enumerate(sizes):
        title, *lines = text[start : start + max(0, size)].split("\n")
        _require(title == f"Tree={number}" and lines[-3:] == [""] * 3, f"the size of tree {number}")
        _check_tree(_table(lines[:-3]), len(names), f"tree {number}")
        start += size
    _require(text[start:].startswith(_END), "the end of its trees")
    return text[: start + len(_END)]


def _check_tree(keys: dict[str, str], n_features: int, tree: str) -> None:
    n_leaves = _numbers(keys.pop("num_leaves"), _INTEGER)[0]
    _numbers(keys.pop("shrinkage"), _NUMBER)
    arrays = {key: keys.pop(key) for key in _ARRAYS}
    _require(keys == _TREE_FIXED and n_leaves > 0, f"{tree}: its keys")
    n_splits, values = n_leaves - 1, dict[str, list[int]]()
    for key, text in arrays.items():
        is_whole = key in (*_WHOLE, *_WHOLE_COUNTS)
        values[key] = _numbers(text, _INTEGER if is_whole else _NUMBER)
        # A tree of one leaf may have no weight and no count.
        lacks = n_leaves == 1 and key in ("leaf_weight", "leaf_count") and not values[key]
        n_expected = n_leaves if key in _LEAF_KEYS else n_splits
        _require(lacks or len(values[key]) == n_expected, f"{tree}: {key}")
    _require(all(0 <= f < n_features for f in values["split_feature"]), f"{tree}: its features")
    # An odd type is a split by category.
    _require(
        all(kind in range(0, 16, 2) for kind in values["decision_type"]), f"{tree}: its splits"
    )
    for side in ("left_child", "right_child"):
        # A child follows its parent, so no path has a circle.
        for split, child in enumerate(values[side]):
            is_leaf = -n_leaves <= child < 0
            _require(is_leaf or split < child < n_splits, f"{tree}: {side}")


def _table(lines: list[str]) -> dict[str, str]:
    table = dict(line.split("=", 1) for line in lines)
    _require(len(table) == len(lines), "a key that occurs twice")
    return table


def _numbers(text: str, pattern: re.Pattern[str]) -> list[int]:
    """Read numbers. Only whole ones are used, so others are checked and become 0."""
    words = text.split(" ") if text else []
    _require(all(map(pattern.fullmatch, words)), "a number")
    return [int(word) if pattern is _INTEGER else 0 for word in words]


def _require(is_good: bool, what: str) -> None:
    if not is_good:
        raise ValueError(f"{what} cannot be right")
