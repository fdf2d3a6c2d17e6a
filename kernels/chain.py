"""Train and rank a recipe by a chain of Kaggle kernels: one for each collection, and one to rank.

The state of a chain is on Kaggle and in the output folder, so the same command resumes it after any
stop. Each kernel has a folder. `before.json` has the latest version on Kaggle before a push, so a
later version shows that the push arrived. `session-VERSION` has the log of an ended session, and
`output` appears when the kernel has finished.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel

from common.files import read_json, write_text
from common.progress import log
from data.tree import COLLECTIONS
from kernels.build import Kind, build, kind_named, slug_of, title_of
from kernels.remote import (
    NOTE_FILE,
    KernelNote,
    QuotaError,
    fetch_output,
    latest_version,
    push,
    status,
)
from models.config.recipe import Recipe

POLL_S = 120.0
BEFORE, OUTPUT = "before.json", "output"
RUNNING = ("queued", "running", "new_script", "cancel_requested")
State = Literal["new", "unfinished", "running", "finished"]


class Before(BaseModel):
    """State of a kernel on Kaggle before a push."""

    version: int
    is_first: bool


class Link(NamedTuple):
    """A kernel of a chain."""

    kernel_id: str
    kind: Kind
    gpu: bool
    folder: Path
    sources: tuple[str, ...] = ()


def run_chain(
    recipe: Recipe,
    out: Path,
    *,
    datasets: Sequence[str] = (),
    n_sessions: int = 2,
    max_minutes: float | None = None,
    beside: Path = Path(),
) -> Path:
    """Push, wait for, resume and fetch all kernels of a recipe.

    Args:
        out: Folder of the chain, new or of an earlier call with the same recipe.
        datasets: Datasets to attach to each kernel, "owner/slug".
        max_minutes: Minutes until a kernel stops itself. The default is 690.
        beside: Folder of custom model packages that are not on Python's path.

    Raises:
        QuotaError: Kaggle starts no kernel now, and no kernel of the chain runs.
    """

    def link(kind: Kind, models: Sequence[str], sources: tuple[str, ...] = ()) -> Link:
        slug = slug_of(title_of(recipe.name, kind))
        kernel_id = latest_version(slug).kernel_id
        return Link(kernel_id, kind, any(map(recipe.training_of, models)), out / slug, sources)

    def send(step: Link, own_output: Sequence[str]) -> None:
        folder = step.folder / "kernel"
        table = recipe.model_dump(mode="json", exclude_none=True)
        build(
            *(recipe.name, table, folder),
            kind=step.kind,
            gpu=step.gpu,
            dataset_sources=datasets,
            kernel_sources=[*step.sources, *own_output],
            beside=beside,
        )
        _push(step, folder)

    # A model that learns from several collections is trained in one kernel. The last collections
    # are the largest, so their kernels start first.
    groups = {recipe.learned_as(c): c for c in reversed(COLLECTIONS) if recipe.models_of(c.kind)}
    trains = [
        link(kind_named("train", group.name, max_minutes), recipe.models_of(group.kind))
        for group in groups.values()
    ]
    _finish(trains, send, n_sessions)
    infer = kind_named("infer", None, max_minutes)
    last = link(infer, recipe.all_models, tuple(step.kernel_id for step in trains))
    _finish([last], send, n_sessions)
    return last.folder / OUTPUT / infer.result


def _finish(
    steps: Sequence[Link], send: Callable[[Link, Sequence[str]], None], n_sessions: int
) -> None:
    """Wait until all kernels have finished, and push those that do not run."""
    while True:
        states = {step: _state(step) for step in steps}
        waiting = [step for step, state in states.items() if state in ("new", "unfinished")]
        n_running = list(states.values()).count("running")
        for step in waiting[: max(0, n_sessions - n_running)]:
            try:
                send(step, [step.kernel_id] if states[step] == "unfinished" else [])
            except QuotaError as error:
                # Another session of the account may use the place, so wait for ours to end.
                if not n_running:
                    raise
                log.info(f"{error}; waiting for {n_running} running kernels")
                break
            n_running += 1
        if not waiting and not n_running:
            return
        time.sleep(POLL_S)


def _state(step: Link) -> State:
    if (step.folder / OUTPUT).is_dir():
        return "finished"
    before, version = _before(step), latest_version(step.kernel_id).version
    if before is None or version <= before.version:
        is_first = before is None or before.is_first
        return "new" if is_first else "unfinished"
    if status(step.kernel_id).state in RUNNING:
        return "running"
    note = step.folder / f"session-{version}"
    if not note.exists():
        fetch_output(step.kernel_id, note, only=NOTE_FILE)
    if not read_json(note / NOTE_FILE, KernelNote, expected="a note of a kernel").finished:
        log.info(f"kernel {step.kernel_id}: version {version} is not finished; it is resumed")
        return "unfinished"
    fetch_output(step.kernel_id, step.folder / OUTPUT)
    log.info(f"kernel {step.kernel_id}: finished; its output is in {step.folder / OUTPUT}")
    return "finished"


def _before(step: Link) -> Before | None:
    path = step.folder / BEFORE
    return read_json(path, Before, expected="a version") if path.exists() else None


def _push(step: Link, folder: Path) -> None:
    """Push a kernel. The record of the version comes first, so that no stop leads to two pushes."""
    before, version = _before(step), latest_version(step.kernel_id).version
    is_first = before is None or (before.is_first and version <= before.version)
    record = Before(version=version, is_first=is_first)
    write_text(step.folder / BEFORE, record.model_dump_json() + "\n")
    new = push(folder)
    log.info(f"kernel {new.kernel_id}: pushed version {new.version}: {new.url}")
