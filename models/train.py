"""Train one model into its run folder, once."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from common.errors import OutOfTime, PipelineError, UsageError
from common.files import alone_in, checksum_of, read_bytes
from common.progress import out_of_time, progress
from common.settings import ROOT
from data.graph_store.stored_graph import fingerprint
from data.tree import COLLECTIONS, LAYOUTS, Collection
from models.config.custom import source_of
from models.config.recipe import Recipe
from models.registry import TrainJob, model_entry
from models.run_folder import begin, check_done, is_done, mark_done
from models.training.device import TRAINING_KEYS, explain_memory_errors
from models.training.loop import CHECKPOINT, WEIGHTS

PACKAGES = ("torch", "torch_geometric", "lightgbm", "sklearn", "scipy", "jinja2", "matplotlib")


def train_model(job: TrainJob, collection: Collection, *, resume: bool) -> None:
    """Train one model, resume its training, or skip a finished one. Its folder then has DONE.

    Args:
        collection: Collection of the job's graphs, or LAYOUTS if the model ranks all layouts.

    Raises:
        OutOfTime: The time is over. The folder has no DONE mark and can be resumed.
    """
    entry = model_entry(job.recipe, job.model)
    if entry.kind != collection.kind:
        raise PipelineError(
            f"model '{job.model}' ranks {entry.kind} configs; expected one for {collection.name}"
        )
    config = getattr(job.recipe, job.model)
    start_from = config.training.start_from if hasattr(config, "training") else ""
    if start_from and job.start is None:
        raise UsageError(
            f"{job.model}.training.start_from = '{start_from}': only `run` and `train` start from "
            "the weights of another collection; expected ''"
        )
    if out_of_time() and not is_done(job.run_dir):
        raise OutOfTime(f"{job.run_dir}: out of time before a step")
    begin(job.run_dir, _config(job, collection), resume=resume)
    if is_done(job.run_dir):
        check_done(job.run_dir)
    else:
        with alone_in(job.run_dir):
            # Another process may have finished it during the wait.
            if not is_done(job.run_dir):
                progress(f"train {job.model} on {collection.name}, into {job.run_dir}", 0, 1)
                with explain_memory_errors(f"train {job.model}", job.model, config, TRAINING_KEYS):
                    entry.train(job)
                files = sorted(path for path in job.run_dir.iterdir() if path.is_file())
                mark_done(
                    job.run_dir, (p for p in files if p.name != CHECKPOINT and p.name[0] != ".")
                )
    (job.run_dir / CHECKPOINT).unlink(missing_ok=True)


def check_packages() -> None:
    """Raise a PipelineError if a package is missing that any part of a run needs."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        install = f"{sys.executable} -m pip install -r {ROOT / 'requirements.txt'}"
        raise PipelineError(f"package {missing[0]}: is not installed; {install}")


def _config(job: TrainJob, collection: Collection) -> dict[str, Any]:
    place: dict[str, object] = {"collection": collection.name}
    if collection == LAYOUTS:
        present = {file.collection for file in job.files}
        place = {"collections": [c.name for c in COLLECTIONS if c in present]}
    ranked = {"ranked_data": fingerprint(job.ranked)} if job.ranked else {}
    start = {"start": checksum_of(read_bytes(job.start / WEIGHTS))} if job.start else {}
    return {
        "model": job.model,
        **place,
        "seed": job.seed,
        "train_data": fingerprint(job.files),
        **ranked,
        **start,
        **sources_of(job.recipe, [job.model]),
        "recipe": job.recipe.model_dump(mode="json"),
    }


def sources_of(recipe: Recipe, models: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the checksums of the files of custom models under `source`, or an empty table."""
    checksums: dict[str, str] = {}
    for name in models:
        if name in recipe.custom_models:
            checksums |= source_of(recipe.custom_class(name))
    return {"source": checksums} if checksums else {}
