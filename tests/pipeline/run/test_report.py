"""Learning curves as metrics.jsonl has them, thinned to what a picture shows."""

import json
from pathlib import Path

import pytest

from common.errors import PipelineError
from models.run_folder import CONFIG, DONE, METRICS
from pipeline.run.report import MAX_POINTS, learning_curves


def put(folder: Path, lines: list[dict[str, float]], *, done: bool = True) -> None:
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text("")
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if done:
        (folder / DONE).write_text("")


def test_models_come_in_the_order_of_the_competition(tmp_path: Path) -> None:
    for group in ("layout-nlp-random", "layout", "tile-xla", "layout-xla-default"):
        put(tmp_path / "models" / group / "net-seed0", [{"step": 1, "loss": 2.0}])
    groups = [curve["group"] for curve in learning_curves(tmp_path)]
    assert groups == ["layout", "tile:xla", "layout:xla:default", "layout:nlp:random"]


def test_losses_and_held_out_values_are_told_apart(tmp_path: Path) -> None:
    lines = [{"step": 1, "loss": 2.0}, {"step": 1, "held_out": 0.5}, {"step": 2, "loss": 1.0}]
    put(tmp_path / "models" / "tile-xla" / "net-seed3", lines)
    assert learning_curves(tmp_path) == [
        {
            "group": "tile:xla",
            "member": "net-seed3",
            **{"step": [1, 2], "loss": [2.0, 1.0], "held_out_step": [1], "held_out": [0.5]},
        }
    ]


def test_long_curves_are_averaged(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": float(step)} for step in range(1, 10 * MAX_POINTS + 1)]
    put(tmp_path / "models" / "tile-xla" / "net-seed0", lines)
    [curve] = learning_curves(tmp_path)
    assert curve["step"][:2] == [10, 20]
    assert curve["loss"][:2] == [5.5, 15.5]
    assert len(curve["step"]) == MAX_POINTS


def test_models_without_a_curve_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "models" / "tile-xla" / "net-seed0", [])
    (tmp_path / "models" / "tile-xla" / "trees-seed0").mkdir()
    (tmp_path / "models" / "tile-xla" / "trees-seed0" / CONFIG).write_text("")
    assert learning_curves(tmp_path) == []


@pytest.mark.parametrize("line", ["{", "3", '{"loss": 1}', '{"step": "a"}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    net = tmp_path / "models" / "tile-xla" / "net-seed0"
    put(net, [{"step": 1, "loss": 1.0}])
    with (net / METRICS).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(PipelineError, match=r"metrics.jsonl: line 2 cannot be read"):
        learning_curves(tmp_path)
