"""A config that stands in the file several times is marked, or listed once."""

import json
from pathlib import Path

import numpy as np

from data.tree import find_graphs
from ensembles.rank.rank import Ranked
from tests.command_line import call

SCORES = np.array([0.3, 0.1, 0.2, 0.1, 0.3], np.float32)
RANKED = Ranked("tile:xla", ["one"], SCORES, np.array([0, 1, 0, 1, 2]))


def listed(best: list[dict[str, object]]) -> list[tuple[object, object, object]]:
    return [(entry["rank"], entry["config"], entry["same_as"]) for entry in best]


def test_a_repeated_config_names_the_row_listed_first() -> None:
    assert listed(RANKED.best(9)) == [
        *((1, 1, None), (2, 3, 1), (3, 2, None), (4, 0, 2), (5, 4, None))
    ]
    assert listed(RANKED.best(2)) == [(1, 1, None), (2, 3, 1)]


def test_distinct_configs_are_listed_once_each() -> None:
    best = RANKED.best(2, distinct=True)
    assert listed(best) == [(1, 1, None), (2, 2, None)]
    assert [entry["score"] for entry in best] == [SCORES[1], SCORES[2]]
    assert listed(RANKED.best(9, distinct=True))[2:] == [(3, 4, None)]


def test_rank_has_a_column_where_configs_repeat(tiny_tree: Path, tmp_path: Path) -> None:
    part = ("--data", tiny_tree, "--collection", "layout:xla:random", "--model", "layout_linear")
    models = ("--recipe", "smoke", "--set", "layout.models=[layout_linear]")
    call("train", *part, *models, "--out", tmp_path)
    file = next(f for f in find_graphs(tiny_tree) if f.submission_id.startswith("layout:xla:rand"))
    with np.load(file.path) as arrays:
        configs = arrays["node_config_feat"]
        twice = {**arrays, "node_config_feat": np.concatenate([configs[:3], configs[:3]])}
    twice["config_runtime"] = np.arange(1, 7)
    path = tmp_path / "twice.npz"
    np.savez(path, **twice)
    words = ("rank", path, "--run", tmp_path / "layout_linear-seed0")
    words += ("--collection", "layout:xla:random")
    assert "same as" in call(*words).splitlines()[1]
    assert "same as" not in call(*words, "--distinct")
    ranked, distinct = (
        json.loads(call(*words, *more, "--json"))["configs"] for more in ((), ("--distinct",))
    )
    rows = configs[[entry["config"] % 3 for entry in ranked]]
    for place, entry in enumerate(ranked):
        equal = [
            e["config"] for e, row in zip(ranked, rows, strict=True) if (row == rows[place]).all()
        ]
        assert entry["same_as"] == (None if equal[0] == entry["config"] else equal[0])
    assert [entry["config"] for entry in distinct] == [
        entry["config"] for entry in ranked if entry["same_as"] is None
    ]
