"""Show a run in TensorBoard or Weights & Biases, from its first checkpoint to its report.

A thread per tracker reads the files that the run writes: metrics.jsonl of each model, then
report.json and report.png. Each call is a separate run in the tracker, with all earlier values.
If a tracker raises or hangs, the run ends with the same bytes.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

from common.credentials import one_line
from common.errors import UsageError, hide_credentials
from common.progress import log
from common.settings import ROOT
from models.run_folder import METRICS, REPORT, REPORT_PICTURE, flat
from submissions.run_report import read_report

FOLDER, PROJECT = "tracking", "fast-or-slow"
POLL_S, FINISH_S, STOP_S = 5.0, 60.0, 10.0
QUIET = {  # WANDB_SILENT also keeps the client from asking for a key
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
}

Config = Mapping[str, Any]  # a recipe, as in TOML
Points = Sequence[tuple[int, Mapping[str, float]]]  # values by name, at a step
Report = Mapping[str, float]  # values by name; empty without a report


class _TensorBoard:
    def __init__(self, out: Path, config: Config) -> None:
        from torch.utils.tensorboard.summary import hparams

        self._root = out / FOLDER / "tensorboard"
        shutil.rmtree(self._root, ignore_errors=True)
        params = {k: v if isinstance(v, int | float) else str(v) for k, v in flat(config)}
        with self._writer("") as writer:
            for summary in hparams(params, {"score/mean": 0.0})[:2]:
                writer.file_writer.add_summary(summary)

    def _writer(self, place: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._root / place))

    def log(self, place: str, points: Points) -> None:
        with self._writer(place) as writer:
            for step, values in points:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

    def finish(self, report: Report, picture: Path, *, is_done: bool) -> None:
        from matplotlib.image import imread

        if report:
            self.log("", [(0, report)])
            with self._writer("") as writer:
                writer.add_image("report", imread(picture)[..., :3], dataformats="HWC")


class _WeightsAndBiases:
    def __init__(self, out: Path, config: Config) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=out.name,
            dir=os.environ.get("WANDB_DIR", str(out.parent)),
            config=dict(config),
            reinit="finish_previous",
            settings=wandb.Settings(init_timeout=FINISH_S, finish_timeout=FINISH_S),
        )

    def log(self, place: str, points: Points) -> None:
        self._run.define_metric(f"{place}/*", step_metric=f"{place}/step")
        for step, values in points:
            named = {**values, "step": step}
            self._run.log({f"{place}/{name}": value for name, value in named.items()})

    def finish(self, report: Report, picture: Path, *, is_done: bool) -> None:
        from wandb import Image

        if report:
            self._run.log({**report, "report": Image(str(picture))})
        self._run.finish(exit_code=0 if is_done else 1)


# Each is built from the run's folder and its recipe.
TRACKERS: dict[str, Any] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
}


def known_trackers(names: Sequence[str] | None) -> Sequence[str]:
    """Check that trackers are known and installed.

    Raises:
        UsageError: A tracker is unknown or not installed.
    """
    for name in names or ():
        if name not in TRACKERS:
            raise UsageError(f"--log-to {name}: expected one of {', '.join(TRACKERS)}")
        found = find_spec(name)
        # A folder of that name in the working folder has no origin.
        if found is None or found.origin is None:
            raise UsageError(
                f"--log-to {name}: {name} is missing; {sys.executable} -m pip install "
                f"-r {ROOT / 'requirements-trackers.txt'} -c {ROOT / 'constraints.txt'}"
            )
    return [*dict.fromkeys(names or ())]


@contextmanager
def logged_to(names: Sequence[str], out: Path, config: Config) -> Iterator[None]:
    """Let trackers follow the run in `out` until the block has ended.

    A tracker that raises, or that is not done in time, is stopped with one line in the log. Python
    does not wait for a daemon thread, so a tracker that hangs does not delay the end of a command.

    Args:
        names: Names of trackers, from `known_trackers`.
        out: Folder of the run. It exists.
    """
    end, done = Event(), Event()
    inputs = (out.absolute(), config, end, done)
    threads = {name: Thread(target=_follow, args=(name, *inputs), daemon=True) for name in names}
    for thread in threads.values():
        thread.start()
    try:
        yield
        done.set()
    finally:
        end.set()
        for name, thread in threads.items():
            thread.join(FINISH_S if done.is_set() else STOP_S)
            if thread.is_alive():
                log.info(f"--log-to {name}: not done in time; the same with --resume sends all")


def _follow(name: str, out: Path, config: Config, end: Event, done: Event) -> None:
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    n_sent: dict[Path, int] = {}
    try:
        tracker, is_over = TRACKERS[name](out, config), False
        while not is_over:
            is_over = end.wait(POLL_S)
            for path in sorted(out.rglob(METRICS)):
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                if new := lines[n_sent.get(path, 0) :]:
                    place = path.parent.relative_to(out).as_posix().removeprefix("models/")
                    tracker.log(place, [(line.pop("step"), line) for line in new])
                    n_sent[path] = len(lines)
        report = _report(out) if done.is_set() else {}
        tracker.finish(report, out / REPORT_PICTURE, is_done=done.is_set())
    except Exception as error:
        message = one_line(hide_credentials(f"{type(error).__name__}: {error}"))
        log.info(f"--log-to {name}: stopped, the run continues: {message}")


def _report(out: Path) -> dict[str, float]:
    # `train` writes no report.
    if not (out / REPORT).exists():
        return {}
    report = read_report(out)
    values = {"score/mean": report.score}
    values |= {f"score/{name}": part.value for name, part in report.collections.items()}
    for name, models in report.models.items():
        values |= {f"member/{name}/{m}": value for m, value in models.member_values.items()}
    values |= {f"seconds/{stage}": seconds for stage, seconds in report.seconds.items()}
    # TensorBoard takes no colon in a name.
    return {name.replace(":", "-"): v for name, v in values.items() if v is not None}
