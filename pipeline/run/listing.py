"""The run folders below a folder: what each was made with, and how it scored."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from data.tree import COLLECTIONS
from models.run_folder import CONFIG, is_done, read_config
from pipeline.run.report import REPORT


@dataclass(frozen=True)
class RunRow:
    """One run folder.

    Attributes:
        state: "done", or "unfinished".
        model: of the folder of a single model; None of a whole run.
        seeds: the recipe's, or the one of a single model.
        revision: of the code that wrote the report; None before there is one.
        score: mean over collections; None where nothing was judged.
        values: by collection, of those that have one.
        problem: why the folder cannot be read; None if it can.
    """

    folder: Path
    state: str = "unfinished"
    recipe: str | None = None
    model: str | None = None
    seeds: tuple[int, ...] = ()
    revision: str | None = None
    score: float | None = None
    values: dict[str, float] | None = None
    problem: str | None = None


def list_runs(folder: Path) -> list[RunRow]:
    """List the run folders below `folder`, itself included, by path.

    What lies within a run folder is a part of it and not listed. A folder that is damaged is listed
    with its problem.

    Raises:
        PipelineError: `folder` is no folder.
    """
    if not folder.is_dir():
        raise PipelineError(f"{folder}: no such folder; expected one that holds run folders")
    return [_row(path) for path in _run_folders(folder)]


def read_report(run: Path) -> dict[str, Any]:
    """Read the report of a run folder, or a report's file itself.

    Raises:
        PipelineError: there is none, or it is damaged.
    """
    path = run / REPORT if run.is_dir() else run
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PipelineError(f"{path}: {_why_no_report(run)}") from None
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error
    if not isinstance(report, dict) or not isinstance(report.get("collections"), dict):
        raise PipelineError(f"{path}: has no key `collections`; expected a run's {REPORT}")
    return report


def _why_no_report(run: Path) -> str:
    if (run / CONFIG).is_file() and "model" in read_config(run):
        return "no report: this is one model's folder; expected the folder of a whole `run`"
    if (run / CONFIG).is_file() and not is_done(run):
        return f"no report: the run is unfinished; finish it with `run … --out {run} --resume`"
    return f"no report; expected the folder of a finished `run`, or its {REPORT}"


def _run_folders(folder: Path) -> Iterator[Path]:
    if (folder / CONFIG).is_file():
        yield folder
        return
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from _run_folders(path)


def _row(folder: Path) -> RunRow:
    state = "done" if is_done(folder) else "unfinished"
    try:
        config = read_config(folder)
        report = read_report(folder) if (folder / REPORT).exists() else None
    except PipelineError as error:
        return RunRow(folder, state, problem=" ".join(str(error).split()))
    recipe = config.get("recipe", {})
    seeds = recipe.get("seeds", []) if "seed" not in config else [config["seed"]]
    values = None
    if report is not None:
        parts = {c.name: report["collections"].get(c.name) for c in COLLECTIONS}
        values = {
            name: part["value"]
            for name, part in parts.items()
            if part and part.get("value") is not None
        }
    return RunRow(
        folder,
        state,
        recipe.get("name"),
        config.get("model"),
        tuple(seeds),
        report.get("revision") if report else None,
        report.get("score") if report else None,
        values,
    )
