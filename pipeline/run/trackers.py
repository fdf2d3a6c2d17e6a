"""Show a run in TensorBoard or Weights & Biases, from its first checkpoint to its report.

A thread per tracker reads the files that the run writes: metrics.jsonl of each model, then
report.json and report.png. Each call is a separate run in the tracker, with all earlier values.
If a tracker raises or hangs, the run ends with the same bytes.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

from common.credentials import one_line
from common.errors import UsageError, hide_credentials
from common.progress import log
from common.settings import how_to_install
from models.run_folder import METRICS, REPORT, REPORT_PICTURE, flat

FOLDER, PROJECT = "tracking", "fast-or-slow"
POLL_S, FINISH_S, STOP_S = 5.0, 60.0, 10.0
# WANDB_SILENT also keeps the client from asking for a key.
QUIET = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_ERROR_REPORTING": "false"}

# Values by name, at a step.
Points = Sequence[tuple[int, Mapping[str, float]]]


class _TensorBoard:
    def __init__(self, out: Path, recipe: Mapping[str, Any]) -> None:
        self._root, self._recipe = out / FOLDER / "tensorboard", dict(flat(recipe))
        shutil.rmtree(self._root, ignore_errors=True)

    def _writer(self, place: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self._root / place))

    def log(self, place: str, points: Points) -> None:
        with self._writer(place) as writer:
            for step, values in points:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

    def finish(self, values: Mapping[str, float], picture: Path, *, is_done: bool) -> None:
        from matplotlib.image import imread

        numbers = int | float
        recipe = {k: v if isinstance(v, numbers) else str(v) for k, v in self._recipe.items()}
        with self._writer("") as writer:
            writer.add_hparams(recipe, values, run_name=".", global_step=0)
            if values:
                writer.add_image("report", imread(picture)[..., :3], dataformats="HWC")


class _WeightsAndBiases:
    def __init__(self, out: Path, recipe: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=out.name,
            dir=os.environ.get("WANDB_DIR", str(out.parent)),
            config=dict(recipe),
            reinit="finish_previous",
            settings=wandb.Settings(init_timeout=FINISH_S, finish_timeout=FINISH_S),
        )

    def log(self, place: str, points: Points) -> None:
        self._run.define_metric(f"{place}/*", step_metric=f"{place}/step")
        for step, values in points:
            row = {**values, "step": step}
            self._run.log({f"{place}/{name}": value for name, value in row.items()})

    def finish(self, values: Mapping[str, float], picture: Path, *, is_done: bool) -> None:
        from wandb import Image

        if values:
            self._run.log({**values, "report": Image(str(picture))})
        self._run.finish(exit_code=0 if is_done else 1)


TRACKERS: dict[str, Any] = {"tensorboard": _TensorBoard, "wandb": _WeightsAndBiases}


def known_trackers(names: Sequence[str] | None) -> Sequence[str]:
    """Check that trackers are known and installed."""
    for name in names or ():
        if name not in TRACKERS:
            raise UsageError(f"--log-to {name}: expected one of {', '.join(TRACKERS)}")
        package = find_spec(name)
        # A folder of that name in the working folder has no origin.
        if package is None or package.origin is None:
            raise UsageError(f"--log-to {name}: {name} is missing; {how_to_install('trackers')}")
    return [*dict.fromkeys(names or ())]


@contextmanager
def logged_to(names: Sequence[str], out: Path, recipe: Mapping[str, Any]) -> Iterator[None]:
    """Let trackers follow the run in the existing folder `out` until the block has ended.

    A tracker that raises, or that is not done in time, is stopped with one line in the log. Python
    does not wait for a daemon thread, so a tracker that hangs does not delay the end of a command.
    """
    end, is_complete = Event(), Event()
    inputs = (out.absolute(), recipe, end, is_complete)
    threads = {name: Thread(target=_follow, args=(name, *inputs), daemon=True) for name in names}
    for thread in threads.values():
        thread.start()
    try:
        yield
        is_complete.set()
    finally:
        end.set()
        for name, thread in threads.items():
            thread.join(FINISH_S if is_complete.is_set() else STOP_S)
            if thread.is_alive():
                log.info(f"--log-to {name}: not done in time; the same with --resume sends all")


def _follow(
    name: str, out: Path, recipe: Mapping[str, Any], end: Event, is_complete: Event
) -> None:
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    n_sent: dict[Path, int] = {}
    try:
        tracker, is_over = TRACKERS[name](out, recipe), False
        while not is_over:
            is_over = end.wait(POLL_S)
            for path in sorted(out.rglob(METRICS)):
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                if new := lines[n_sent.get(path, 0) :]:
                    place = path.parent.relative_to(out).as_posix().removeprefix("models/")
                    tracker.log(place, [(line.pop("step"), line) for line in new])
                    n_sent[path] = len(lines)
        values = _report_values(out) if is_complete.is_set() else {}
        tracker.finish(values, out / REPORT_PICTURE, is_done=is_complete.is_set())
    except Exception as error:
        message = one_line(hide_credentials(f"{type(error).__name__}: {error}"))
        log.info(f"--log-to {name}: stopped, the run continues: {message}")


def _report_values(out: Path) -> dict[str, float]:
    # `train` writes no report.
    if not (out / REPORT).exists():
        return {}
    from submissions.run_report import read_report

    report = read_report(out)
    values = {"score/mean": report.score}
    values |= {f"score/{name}": part.value for name, part in report.collections.items()}
    for name, models in report.models.items():
        values |= {f"member/{name}/{m}": value for m, value in models.member_values.items()}
    values |= {f"seconds/{stage}": seconds for stage, seconds in report.seconds.items()}
    # TensorBoard takes no colon in a name.
    return {name.replace(":", "-"): v for name, v in values.items() if v is not None}
