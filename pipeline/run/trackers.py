"""Show a run in TensorBoard, Weights & Biases or MLflow: while it goes on, and whole at its end.

A tracker's client works in a process of its own. It reads what models and the run leave in their
folders (metrics.jsonl, report.json, report.png), and keeps what it has sent in OUT/tracking. Should
it raise, hang or find no space, the run goes on, and ends with the same bytes.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from secrets import token_hex
from threading import Thread
from typing import Any

from common.atomic import locked, write_text
from common.credentials import one_line
from common.errors import UsageError, hide_credentials
from common.progress import log
from common.settings import ROOT
from models.run_folder import METRICS, REPORT, REPORT_PICTURE, flat
from pipeline.jobs.here import interrupts_held

FOLDER, PROJECT = "tracking", "fast-or-slow"
POLL_S, FINISH_S, STOP_S = 5.0, 60.0, 10.0
MAX_METRICS, MAX_PARAMS = 1000, 100  # in one request to MLflow
QUIET = {
    **{"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_ERROR_REPORTING": "false"},
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
SECRET = re.compile("KEY|TOKEN|PASSWORD|SECRET", re.IGNORECASE)  # variables of the environment

Config = Mapping[str, Any]  # a recipe, as in TOML
Points = Sequence[tuple[int, Mapping[str, float]]]  # values by name, at a step
Sent = dict[str, Any]  # the run's `id` there, `lines` of metrics.jsonl by place, and `scores`


class _TensorBoard:
    def __init__(self, out: Path, config: Config, sent: Sent) -> None:
        from torch.utils.tensorboard.summary import hparams

        self._root = out / FOLDER / "tensorboard"
        if "id" not in sent:
            told = {k: v if isinstance(v, int | float) else str(v) for k, v in flat(config)}
            with self._writer("") as writer:
                for summary in hparams(told, {"score/mean": 0.0})[:2]:
                    writer.file_writer.add_summary(summary)
            sent["id"] = str(self._root)

    def _writer(self, place: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._root / place))

    def log(self, place: str, points: Points) -> None:
        with self._writer(place) as writer:
            for step, values in points:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

    def show(self, picture: Path) -> None:
        from matplotlib.image import imread

        with self._writer("") as writer:
            writer.add_image("report", imread(picture)[..., :3], dataformats="HWC")

    def close(self, *, is_done: bool) -> None:
        pass


class _WeightsAndBiases:
    def __init__(self, out: Path, config: Config, sent: Sent) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=out.name,
            id=sent.setdefault("id", token_hex(4)),
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(out.parent)),
            config=dict(config),
            reinit="finish_previous",
        )
        # What is synced of a run takes the place of what was synced of it before.
        self.begins_anew = bool(self._run.offline)

    def log(self, place: str, points: Points) -> None:
        if place:
            self._run.define_metric(f"{place}/*", step_metric=f"{place}/step")
        for step, values in points:
            named = {f"{place}/{name}": v for name, v in {**values, "step": step}.items()}
            self._run.log(named if place else values)

    def show(self, picture: Path) -> None:
        from wandb import Image

        self._run.log({"report": Image(str(picture))})

    def close(self, *, is_done: bool) -> None:
        self._run.finish(exit_code=0 if is_done else 1)


class _MLflow:
    def __init__(self, out: Path, config: Config, sent: Sent) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        own = None if os.environ.get("MLFLOW_TRACKING_URI") else out.parent
        self._sent = sent
        self._client = client = MlflowClient(f"sqlite:///{own / 'mlflow.db'}" if own else None)
        if "id" in sent:
            client.update_run(sent["id"], status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = client.get_experiment_by_name(name)
        place = (own / "mlartifacts").as_uri() if own else None
        experiment_id = known.experiment_id if known else client.create_experiment(name, place)
        sent["id"] = client.create_run(experiment_id, run_name=out.name).info.run_id
        params = [Param(key, str(value)) for key, value in flat(config)]
        for start in range(0, len(params), MAX_PARAMS):
            client.log_batch(sent["id"], params=params[start : start + MAX_PARAMS])

    def log(self, place: str, points: Points) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(f"{place}/{name}".lstrip("/"), value, round(1000 * time.time()), step)
            for step, values in points
            for name, value in values.items()
        ]
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._sent["id"], metrics=metrics[start : start + MAX_METRICS])

    def show(self, picture: Path) -> None:
        self._client.log_artifact(self._sent["id"], str(picture))

    def close(self, *, is_done: bool) -> None:
        self._client.set_terminated(self._sent["id"], "FINISHED" if is_done else "KILLED")


# Made of the run's folder, its recipe and what was sent, to which they add the run's `id`;
# `begins_anew` where what was sent in an earlier call has to be sent again.
TRACKERS: dict[str, Any] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}


def known_trackers(names: Sequence[str] | None) -> Sequence[str]:
    """Return the names, each once, of trackers that are known and installed.

    Raises:
        UsageError: names the first such, and what to do.
    """
    for name in names or ():
        if name not in TRACKERS:
            raise UsageError(f"--log-to {name}: expected one of {', '.join(TRACKERS)}")
        found = find_spec(name)
        if found is None or found.origin is None:  # a folder of that name where one works
            raise UsageError(
                f"--log-to {name}: {name} is missing; {sys.executable} -m pip install "
                f"-r {ROOT / 'requirements-trackers.txt'} -c {ROOT / 'constraints.txt'}"
            )
    return [*dict.fromkeys(names or ())]


@contextmanager
def logged_to(names: Sequence[str], out: Path, config: Config) -> Iterator[None]:
    """Let trackers follow the run in `out`, whose folder is there, until the block has ended.

    One that fails (its client tries again by itself), or does not end in time, is given up with a
    line that says so.

    Args:
        names: see `known_trackers`.
    """
    with ExitStack() as followers:
        for name in names:
            followers.enter_context(_followed_by(name, out.absolute(), config))
        yield


@contextmanager
def _followed_by(name: str, out: Path, config: Config) -> Iterator[None]:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_follow, args=(theirs, name, out, config), daemon=True)
    with interrupts_held():
        process.start()
    theirs.close()
    hearing = Thread(target=_hear, args=(ours,), daemon=True)
    hearing.start()
    is_done = False
    try:
        yield
        is_done = True
    finally:
        with suppress(OSError):
            ours.send(is_done)
        process.join(FINISH_S if is_done else STOP_S)
        process.kill()
        process.join()
        hearing.join(STOP_S)
        if process.exitcode:
            log.info(f"--log-to {name}: did not end well; the same with --resume sends the rest")


def _hear(connection: Connection) -> None:
    with suppress(EOFError, OSError):
        while True:
            log.info(connection.recv())


def _follow(connection: Connection, name: str, out: Path, config: Config) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the parent as well
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # clients print, and ask for keys
        os.dup2(nowhere, number)
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    with locked(out / FOLDER / f".{name}.lock"):  # of one that outlives a killed run
        path = out / FOLDER / f"{name}.json"
        sent = json.loads(path.read_text()) if path.exists() else {"lines": {}, "scores": {}}
        is_done = None
        try:
            tracker = TRACKERS[name](out, config, sent)
            if getattr(tracker, "begins_anew", False):
                sent |= {"lines": {}, "scores": {}}
            while is_done is None:
                is_done = _news(connection)
                try:
                    _send(tracker, out, sent, is_done=bool(is_done))
                finally:
                    write_text(path, json.dumps(sent))
            tracker.close(is_done=is_done)
        except BaseException as error:
            connection.send(f"--log-to {name}: given up, the run goes on: {_told(error)}")


def _news(connection: Connection) -> bool | None:
    try:
        return bool(connection.recv()) if connection.poll(POLL_S) else None
    except (EOFError, OSError):
        return False


def _send(tracker: Any, out: Path, sent: Sent, *, is_done: bool) -> None:
    for path in sorted(out.rglob(METRICS)):
        place = path.parent.relative_to(out).as_posix().removeprefix("models/")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        new = lines[sent["lines"].get(place, 0) :]
        if new:
            tracker.log(place, [(line.pop("step"), line) for line in new])
        sent["lines"][place] = len(lines)
    if is_done and (out / REPORT).exists():
        report = json.loads((out / REPORT).read_text())
        scores = _scores(report)
        if scores != sent["scores"]:  # a run that is gone on with may have them again
            values = scores | {f"seconds/{stage}": s for stage, s in report["seconds"].items()}
            # As folders have names; not all trackers take a colon.
            plain = {name.replace(":", "-"): value for name, value in values.items()}
            tracker.log("", [(0, plain)])
            tracker.show(out / REPORT_PICTURE)
            sent["scores"] = scores


def _scores(report: Mapping[str, Any]) -> dict[str, float]:
    values = {"score/mean": report["score"]}
    values |= {f"score/{name}": part["value"] for name, part in report["collections"].items()}
    for name, ranked in report["models"].items():
        values |= {f"member/{name}/{m}": value for m, value in ranked["member_values"].items()}
    return {name: value for name, value in values.items() if value is not None}


def _told(error: BaseException) -> str:
    """Return a client's error on one line, without what the environment holds of credentials."""
    text = hide_credentials(f"{type(error).__name__}: {error}")
    for name, value in os.environ.items():
        if SECRET.search(name) and value:
            text = text.replace(value, "***")
    return one_line(text)
