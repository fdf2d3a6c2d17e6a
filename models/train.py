"""Train one model into its run folder, once."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from data.errors import OutOfTime, PipelineError
from data.fingerprint import fingerprint
from data.tree import Collection
from models.engine import CHECKPOINT
from models.jobs import Ranker, TrainJob
from models.processes import on_processes
from models.recipe import recipe_from_table
from models.registry import model_entry
from models.run_folder import CONFIG, begin, is_done, mark_done, read_config

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train_model(job: TrainJob, collection: Collection, *, resume: bool) -> None:
    """Train, or go on with, or skip what is done; the folder ends with a DONE mark.

    Raises:
        UsageError: the folder belongs to another run.
        PipelineError: as the model's training.
        OutOfTime: the job's deadline is over; the folder has no DONE mark and can be resumed.
    """
    entry = model_entry(job.model)
    if entry.kind != collection.kind:
        raise PipelineError(
            f"model '{job.model}' ranks {entry.kind} configs; expected one for {collection.name}"
        )
    config = {
        "model": job.model,
        "collection": collection.name,
        "seed": job.seed,
        "train_data": fingerprint(job.files),
        "recipe": job.recipe.model_dump(mode="json"),
    }
    if job.deadline is not None and time.monotonic() > job.deadline and not is_done(job.run_dir):
        raise OutOfTime(f"{job.run_dir}: out of time before a step")
    begin(job.run_dir, config, resume=resume)
    if not is_done(job.run_dir):
        training = entry.training_of(job.recipe)
        if training and training.processes > 1:
            own = replace(job, progress=None)  # a bar cannot be handed to another process
            n, precision = training.processes, training.precision
            on_processes(_train_on_one, own, processes=n, precision=precision)
        else:
            entry.train(job)
        mark_done(job.run_dir)
    (job.run_dir / CHECKPOINT).unlink(missing_ok=True)


def _train_on_one(fabric: "Fabric", job: TrainJob) -> None:
    """Train on one process of several."""
    model_entry(job.model).train(replace(job, fabric=fabric))


def load_model(folder: Path) -> Ranker:
    """Load the trained model of a run folder.

    Raises:
        PipelineError: not a model's run folder, its training has not ended, or it is damaged.
    """
    config = read_config(folder)
    missing = [key for key in ("model", "recipe") if key not in config]
    if missing:
        raise PipelineError(f"{folder / CONFIG}: key '{missing[0]}' is missing; not a model's run")
    if not is_done(folder):
        raise PipelineError(f"{folder}: its training has not ended; run it again with --resume")
    recipe = recipe_from_table(config["recipe"], path=folder / CONFIG)
    return model_entry(config["model"]).load(folder, recipe)
