"""Train one model into its run folder, once."""

from pathlib import Path

from data.errors import PipelineError
from data.fingerprint import fingerprint
from data.tree import Collection
from models.engine import CHECKPOINT
from models.jobs import Ranker, TrainJob
from models.recipe import recipe_from_table
from models.registry import model_entry
from models.run_folder import CONFIG, begin, is_done, mark_done, read_config


def train_model(job: TrainJob, collection: Collection, *, resume: bool) -> None:
    """Train, or go on with, or skip what is done; the folder ends with a DONE mark.

    Raises:
        UsageError: the folder belongs to another run.
        PipelineError: as the model's training.
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
    begin(job.run_dir, config, resume=resume)
    if not is_done(job.run_dir):
        entry.train(job)
        mark_done(job.run_dir)
    (job.run_dir / CHECKPOINT).unlink(missing_ok=True)


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
