"""What trackers are told, read back by their own clients; and what becomes of those that fail."""

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.progress import heard_by
from common.settings import ROOT
from pipeline.run import trackers
from pipeline.run.trackers import logged_to
from tests.support.command_line import call

NET, TREE = "tile-xla/late_fusion_sage-seed0", "tile-xla/tile_boosting-seed0"
TILES = ("--recipe", "smoke", "--collections", "tile:xla", "--set", "threads=1", "--workers", 1)
ALL = [word for name in trackers.TRACKERS for word in ("--log-to", name)]
KEY = "planted-key-93af17c2"


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Nothing is sent anywhere; MLflow writes files, as its database takes seconds to make."""
    store = tmp_path_factory.mktemp("mlflow") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        patch.setenv("MLFLOW_TRACKING_URI", store.as_uri())
        patch.setattr(trackers, "FINISH_S", 600.0)  # a slow machine is no client that hangs
        patch.setattr(trackers, "STOP_S", 600.0)
        yield store


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


def test_mlflow_has_the_same_in_one_run(run: Path, offline: Path) -> None:
    from mlflow import MlflowClient

    client = MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'fast-or-slow'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.params["tile.models"].startswith("['")
    seen = client.get_metric_history(found.info.run_id, f"{NET}/loss")
    assert [(point.step, point.value) for point in seen] == losses(run)
    report = json.loads((run / "report.json").read_text())
    assert found.data.metrics["score/tile-xla"] == report["collections"]["tile:xla"]["value"]
    assert len(client.get_metric_history(found.info.run_id, "score/mean")) == 1
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["report.png"]


def test_wandb_has_a_run_with_scores(run: Path) -> None:
    (log,) = run.parent.glob("wandb/offline-run-*/*.wandb")
    while b"score/mean" not in log.read_bytes():  # the client's process writes it behind our back
        time.sleep(0.1)
    assert f"{NET}/loss".encode() in log.read_bytes()


def add_losses(out: Path, *values: float) -> None:
    path = out / "models" / NET / "metrics.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(f'{{"step": {10 * value:.0f}, "loss": {value}}}\n' for value in values)


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
        "--log-to wandb: given up, the run goes on: OSError: No space left on https://***@host"
    ]
    assert (tmp_path / "out" / "tile_boosting-seed0" / "DONE").exists()
    assert (tmp_path / "out" / "tracking" / "tensorboard").is_dir()


def test_values_are_sent_while_the_run_is_on_and_again_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setattr(trackers, "POLL_S", 0.01)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "stopped")
    client, lines = MlflowClient(), list[str]()

    def runs() -> list[tuple[str, list[float]]]:
        known = client.get_experiment_by_name("stopped")
        found = client.search_runs([known.experiment_id], order_by=["start_time"]) if known else []
        histories = [client.get_metric_history(run.info.run_id, f"{NET}/loss") for run in found]
        return [
            (run.info.status, [point.value for point in history])
            for run, history in zip(found, histories, strict=True)
        ]

    followed = logged_to(["mlflow"], tmp_path, {"name": "cpu"})
    with pytest.raises(KeyboardInterrupt), heard_by(lines.append), followed:
        add_losses(tmp_path, 1.0, 2.0)
        while runs() != [("RUNNING", [1.0, 2.0])]:
            time.sleep(0.05)
        raise KeyboardInterrupt
    assert lines == []
    add_losses(tmp_path, 3.0)
    with logged_to(["mlflow"], tmp_path, {"name": "cpu"}):
        pass
    assert runs() == [("KILLED", [1.0, 2.0]), ("FINISHED", [1.0, 2.0, 3.0])]


def test_a_server_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "FINISH_S", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:  # nobody accepts
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        with heard_by(lines.append), logged_to(["mlflow"], tmp_path, {"name": "cpu"}):
            pass
    assert lines == ["--log-to mlflow: not done in time; the same with --resume sends all"]


INSTALL = f"{sys.executable} -m pip install -r {ROOT}"  # holds in any working folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("neptune", "expected one of tensorboard, wandb, mlflow"),
        ("mlflow", f"mlflow is missing; {INSTALL}/requirements-trackers.txt -c {ROOT}/constraints"),
    ],
)
def test_what_is_not_there_is_named_before_any_work(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    words = ("run", *TILES, "--out", tmp_path / "out", "--log-to", name)
    assert call(*words, expect=2).startswith(f"error: --log-to {name}: {expected}")
    assert not (tmp_path / "out").exists()
