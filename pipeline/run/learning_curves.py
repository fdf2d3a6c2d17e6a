"""How the losses of a run's networks fell, read from the metrics.jsonl of each model's folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import PipelineError
from data.tree import COLLECTIONS
from models.run_folder import CONFIG, is_done
from models.training.checkpoint import METRICS

MAX_POINTS = 60  # of a curve; more than a picture can show


@dataclass(frozen=True)
class ModelFolder:
    """The folder of one model of a run.

    Attributes:
        group: the collection, or another group of models; "" for a run of one model.
        member: "<model>-seed<number>".
        folder: where it lies.
    """

    group: str
    member: str
    folder: Path

    @property
    def is_done(self) -> bool:
        """Tell whether its training has ended."""
        return is_done(self.folder)


def model_folders(run: Path) -> list[ModelFolder]:
    """List the models of a run by collection, or the one of a single model's folder."""
    if not (run / "models").is_dir():
        return [ModelFolder("", run.name, run)] if (run / METRICS).exists() else []
    names = {collection.slug: collection.name for collection in COLLECTIONS}
    order = list(names)
    groups = [path for path in (run / "models").iterdir() if path.is_dir()]
    groups.sort(key=lambda path: (order.index(path.name) if path.name in order else -1, path.name))
    return [
        ModelFolder(names.get(group.name, group.name), folder.name, folder)
        for group in groups
        for folder in sorted(group.iterdir())
        if (folder / CONFIG).is_file()
    ]


def learning_curves(run: Path) -> list[dict[str, Any]]:
    """Read the learning curves of a run; models that log none (trees, linear) have none.

    Returns:
        For each: `group` and `member` (see ModelFolder), `step` and `loss`, and `held_out_step` and
        `held_out` (the metric on what was held out of training; empty without `early_stop`). Losses
        are means over the steps since the one before; there are at most 60 of each.

    Raises:
        PipelineError: a damaged file.
    """
    curves = []
    for model in model_folders(run):
        path = model.folder / METRICS
        if path.exists():
            lines = list(_lines(path))
            step, loss = _thinned(
                [(line["step"], line["loss"]) for line in lines if "loss" in line]
            )
            at, value = _thinned(
                [(line["step"], line["held_out"]) for line in lines if "held_out" in line]
            )
            if not step:
                continue
            curves.append(
                {
                    "group": model.group,
                    "member": model.member,
                    **{"step": step, "loss": loss, "held_out_step": at, "held_out": value},
                }
            )
    return curves


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            point = json.loads(line)
            point["step"] + 0
        except (ValueError, KeyError, TypeError) as error:
            raise PipelineError(
                f"{path}: line {number} cannot be read: {error}; expected a JSON object with `step`"
            ) from error
        yield point


def _thinned(points: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """Average neighbours until few enough points are left; each stands at its last step."""
    if not points:
        return [], []
    parts = np.array_split(np.array(points, np.float64), min(len(points), MAX_POINTS))
    return [int(p[-1, 0]) for p in parts], [round(float(p[:, 1].mean()), 6) for p in parts]
