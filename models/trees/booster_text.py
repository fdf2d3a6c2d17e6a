"""LightGBM's text format, read with the checks that LightGBM does not make.

LightGBM follows the indices of a model file wherever they point, so a damaged or hostile file can
end the process. LightGBM gets another text here: a header of our own, and the fields of each tree
that scores depend on, after all their indices are checked.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.files import open_regular

# Integers of a tree's n nodes; then the nodes' thresholds, and the values of n + 1 leaves.
_FIELDS = ("split_feature", "decision_type", "left_child", "right_child", "threshold", "leaf_value")
_ALWAYS = {"num_class": "1", "num_tree_per_iteration": "1", "num_cat": "0", "is_linear": "0"}
_CHARACTERS = {int: b"0123456789- ", float: b"0123456789-+.e "}
# A numerical split: either default direction, with each treatment of missing values.
_DECISION_TYPES = (0, 2, 4, 6, 8, 10)


def read_booster_text(path: Path) -> tuple[list[str], str]:
    """Read a LightGBM model of one output, with numerical splits and constant leaves.

    Args:
        path: The text file that LightGBM wrote.

    Returns:
        The names of the features, and a model text that is safe to load and gives the same scores.

    Raises:
        ValueError: The file is no such model: a field is missing or has a wrong length, a number is
            out of range, or the nodes of a tree are no tree.
        PipelineError: The file cannot be opened.
    """
    with open_regular(path) as file:
        lines = file.read().decode("ascii").partition("\nend of trees\n")[0].split("\n")
    fields = defaultdict[str, list[str]](list)
    for key, _, value in (line.partition("=") for line in lines):
        fields[key].append(value)
    names = " ".join(fields["feature_names"]).split(" ")
    for key, expected in (_ALWAYS | {"max_feature_idx": str(len(names) - 1)}).items():
        if set(fields[key]) != {expected}:
            raise ValueError(f"{key} is not {expected} everywhere")
    columns = [fields[key] for key in _FIELDS]
    n_nodes = _check_trees(columns, len(names))
    texts = []
    for number, (n, *values) in enumerate(zip(n_nodes, *columns, strict=True)):
        own = "".join(f"{key}={value}\n" for key, value in zip(_FIELDS, values, strict=True))
        texts.append(f"Tree={number}\nnum_leaves={n + 1}\nnum_cat=0\n{own}\n\n")
    header = {
        **{"version": "v4", "num_class": 1, "num_tree_per_iteration": 1, "label_index": 0},
        **{"max_feature_idx": len(names) - 1, "feature_names": " ".join(names)},
        "feature_infos": " ".join(["none"] * len(names)),
        "tree_sizes": " ".join(str(len(text)) for text in texts),
    }
    head = "".join(f"{key}={value}\n" for key, value in header.items())
    return names, f"tree\n{head}\n{''.join(texts)}end of trees\n"


def _check_trees(columns: Sequence[list[str]], n_features: int) -> NDArray[np.int64]:
    """Return how many nodes each tree has (t,); ValueError: not all `columns` describe trees."""
    kinds = (int,) * 4 + (float,) * 2
    lengths, values = zip(*map(_numbers, columns, kinds), strict=True)
    n_nodes: NDArray[np.int64] = lengths[-1] - 1
    if not len(n_nodes) or any(not np.array_equal(own, n_nodes) for own in lengths[:-1]):
        raise ValueError("fields of trees are missing, or their lengths do not fit together")
    feature, decision, *children = values[:4]
    if not (_within(feature, 0, n_features) and np.isin(decision, _DECISION_TYPES).all()):
        raise ValueError("a split reads no feature that is there, or is not numerical")
    n, sizes = np.repeat(n_nodes, n_nodes), 2 * n_nodes + 1
    node = np.arange(len(n)) - np.repeat(np.cumsum(n_nodes) - n_nodes, n_nodes)
    # Child i is a node, and ~i a leaf. LightGBM numbers nodes after their parents.
    if not all(_within(own, ~n, n) and ((own < 0) | (own > node)).all() for own in children):
        raise ValueError("a child is out of range, or comes before its parent")
    # Places of all leaves and nodes of a tree, tree after tree: each is the child of one node.
    start = np.repeat(np.cumsum(sizes) - sizes, n_nodes) + n + 1
    if (np.bincount(np.concatenate([start + own for own in children])) > 1).any():
        raise ValueError("two nodes have the same child")
    return n_nodes


def _numbers(texts: Sequence[str], kind: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return how many numbers each text has, and all of them; ValueError: others than `kind`."""
    every = " ".join(filter(None, texts))
    if every.encode().translate(None, _CHARACTERS[kind]):
        raise ValueError("expected numbers alone")
    values = np.array([*map(kind, every.split(" "))] if every else [], kind)
    if not np.isfinite(values).all():
        raise ValueError("a number is not finite")
    return np.array([text.count(" ") + 1 if text else 0 for text in texts], np.int64), values


def _within(values: NDArray[np.int64], low: Any, end: Any) -> bool:
    return bool(((values >= low) & (values < end)).all())
