"""Logs of trackers, read back by their clients, and the handling of failed trackers."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.progress import log_lines_to
from common.settings import ROOT
from pipeline.run import trackers
from pipeline.run.trackers import logged_to
from tests.support.command_line import call

NET = "tile-xla/late_fusion_sage-seed0"
TILES = ("--recipe", "smoke", "--collections", "tile:xla", "--set", "threads=1", "--workers", 1)
ALL = [word for name in trackers.TRACKERS for word in ("--log-to", name)]
KEY = "planted-key-93af17c2"


@pytest.fixture(scope="module", autouse=True)
def offline() -> Iterator[None]:
    """Nothing is sent anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setattr(trackers, "FINISH_S", 600.0)  # a slow machine is no client that hangs
        patch.setattr(trackers, "STOP_S", 600.0)
        yield


def files_of(out: Path) -> dict[str, bytes]:
    """Return the files of a run that are the same in each run, by place."""
    paths = [*out.rglob("*.safetensors"), *out.rglob("metrics.jsonl"), *out.glob("submission*")]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def losses(out: Path) -> list[tuple[int, float]]:
    lines = (out / "models" / NET / "metrics.jsonl").read_text().splitlines()
    return [(point["step"], point["loss"]) for point in map(json.loads, lines) if "loss" in point]


@pytest.fixture(scope="module")
def run(tiny_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that all trackers followed."""
    out = tmp_path_factory.mktemp("followed") / "run"
    said = call("run", "--data", tiny_tree, *TILES, "--out", out, *ALL)
    assert "--log-to" not in said
    return out


@pytest.mark.slow
def test_the_results_are_the_same_bytes(run: Path, tiny_tree: Path, tmp_path: Path) -> None:
    call("run", "--data", tiny_tree, *TILES, "--out", tmp_path / "plain")
    plain = files_of(tmp_path / "plain")
    assert len(plain) >= 4
    assert files_of(run) == plain


def test_tensorboard_has_losses_scores_picture_and_recipe_once(run: Path) -> None:
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer

    board = EventMultiplexer().AddRunsFromDirectory(str(run / "tracking" / "tensorboard"))
    board.Reload()
    seen = [(event.step, event.value) for event in board.Scalars(NET, "loss")]
    assert [step for step, _ in seen] == [step for step, _ in losses(run)]
    assert [value for _, value in seen] == pytest.approx([value for _, value in losses(run)])
    report = json.loads((run / "report.json").read_text())
    (mean,) = board.Scalars(".", "score/mean")
    assert mean.value == pytest.approx(report["score"])
    (stage,) = board.Scalars(".", f"seconds/train {NET.replace('/', ' ')}")
    assert stage.value > 0
    (picture,) = board.Images(".", "report")
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    assert board.GetAccumulator(".").PluginTagToContent("hparams")


def test_wandb_has_a_run_with_scores(run: Path) -> None:
    (log,) = run.parent.glob("wandb/offline-run-*/*.wandb")
    while b"score/mean" not in log.read_bytes():  # the client's process writes it behind our back
        time.sleep(0.1)
    assert f"{NET}/loss".encode() in log.read_bytes()


def test_values_are_sent_while_the_run_is_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setattr(trackers, "POLL_S", 0.01)
    path = tmp_path / "models" / NET / "metrics.jsonl"
    path.parent.mkdir(parents=True)

    def seen() -> list[float]:
        board = EventAccumulator(str(tmp_path / "tracking" / "tensorboard" / NET)).Reload()
        return [event.value for event in board.Scalars("loss")] if board.Tags()["scalars"] else []

    with logged_to(["tensorboard"], tmp_path, {"name": "cpu"}):
        path.write_text('{"step": 10, "loss": 1.0}\n')
        while not (tmp_path / "tracking" / "tensorboard" / NET).exists() or seen() != [1.0]:
            time.sleep(0.05)


def test_a_tracker_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "FINISH_S", 0.1)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda *_: time.sleep(60))
    lines: list[str] = []
    with log_lines_to(lines.append), logged_to(["wandb"], tmp_path, {"name": "cpu"}):
        pass
    assert lines == ["--log-to wandb: not done in time; the same with --resume sends all"]


class Raises:
    def __init__(self, *_: object) -> None:
        raise OSError(f"No space left on https://me:{KEY}@host")


def test_a_tracker_that_raises_costs_one_line(
    tmp_path: Path, tiny_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(trackers.TRACKERS, "wandb", Raises)
    words = ("train", "--data", tiny_tree, "--recipe", "smoke", "--collection", "tile:xla")
    output = call(*words, "--model", "tile_boosting", "--out", tmp_path / "out", *ALL[:4])
    assert [line for line in output.splitlines() if "--log-to" in line] == [
        "--log-to wandb: stopped, the run continues: OSError: No space left on https://***@host"
    ]
    assert (tmp_path / "out" / "tile_boosting-seed0" / "DONE").exists()
    assert (tmp_path / "out" / "tracking" / "tensorboard").is_dir()


INSTALL = f"{sys.executable} -m pip install -r {ROOT}"  # holds in any working folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("neptune", "expected one of tensorboard, wandb"),
        ("wandb", f"wandb is missing; {INSTALL}/requirements-trackers.txt -c {ROOT}/constraints"),
    ],
)
def test_unknown_and_missing_trackers_are_named_before_any_work(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    words = ("run", *TILES, "--out", tmp_path / "out", "--log-to", name)
    assert call(*words, expect=2).startswith(f"error: --log-to {name}: {expected}")
    assert not (tmp_path / "out").exists()
