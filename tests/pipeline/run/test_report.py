"""The learning curves of a report, from metrics.jsonl, and the shares of members in a blend."""

import json
from pathlib import Path

import pytest

from common.errors import PipelineError
from models.run_folder import CONFIG, METRICS
from pipeline.run.report import MAX_POINTS, blend_shares, learning_curves
from submissions.run_report import LearningCurve


def put(folder: Path, *lines: dict[str, float]) -> None:
    folder.mkdir(parents=True)
    (folder / CONFIG).touch()
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_curves_come_in_the_order_of_the_competition_where_there_are_any(tmp_path: Path) -> None:
    both = ({"step": 1, "loss": 2.0}, {"step": 1, "held_out": 0.5}, {"step": 2, "loss": 1.0})
    models = tmp_path / "models"
    put(models / "layout-nlp-random" / "net-seed0", *both[:1])
    put(models / "layout" / "net-seed3", *both)
    put(models / "tile-xla" / "net-seed0")
    (models / "tile-xla" / "trees-seed0").mkdir()
    first, second = learning_curves(tmp_path)
    assert (first.group, second.group) == ("layout", "layout:nlp:random")
    values = {"step": [1, 2], "loss": [2.0, 1.0], "held_out_step": [1], "held_out": [0.5]}
    assert first == LearningCurve(group="layout", member="net-seed3", **values)


def test_long_curves_are_averaged(tmp_path: Path) -> None:
    lines = ({"step": step, "loss": float(step)} for step in range(1, 10 * MAX_POINTS + 1))
    put(tmp_path / "models" / "tile-xla" / "net-seed0", *lines)
    [curve] = learning_curves(tmp_path)
    assert (curve.step[:2], curve.loss[:2]) == ([10, 20], [5.5, 15.5])
    assert len(curve.step) == MAX_POINTS


@pytest.mark.parametrize("line", ["{", '{"loss": 1}', '{"step": NaN, "loss": 1}', "[" * 100_000])
def test_a_damaged_line_of_a_curve_names_its_file(tmp_path: Path, line: str) -> None:
    net = tmp_path / "models" / "tile-xla" / "net-seed0"
    put(net, {"step": 1, "loss": 1.0})
    with (net / METRICS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PipelineError, match=r"metrics\.jsonl: cannot be used: "):
        learning_curves(tmp_path)


def test_share_of_a_member_counts_only_the_graphs_that_it_ranks() -> None:
    weights = {"net": 1.0, "trees": 1.0, "siblings": 2.0, "unknown": 5.0}
    ranked = {"net": {"a", "b"}, "trees": {"a", "b"}, "siblings": {"b"}, "unknown": set[str]()}
    # "a" has two members with a half each, and "b" has shares of 1/4, 1/4 and 2/4.
    shares = blend_shares(weights, ranked)
    assert shares == {"net": 0.375, "trees": 0.375, "siblings": 0.25, "unknown": 0.0}
