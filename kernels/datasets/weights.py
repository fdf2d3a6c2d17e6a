"""A dataset folder with trained models: what ranking needs of their run folders, and no more."""

import shutil
from pathlib import Path

from common.atomic import write_bytes
from common.errors import PipelineError
from ensembles.trained_models import find_models, one_of_each
from kernels.datasets.folder import dataset_metadata, require_free, seal
from models.run_folder import CONFIG, DONE
from models.training.jobs import SHARED_FOLDER

# What models of every kind leave that ranks with them; scores, pictures and reports do not.
_NEEDED_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".jsonl"})
_CHECKPOINTS = "checkpoint."
_NOT_NEEDED = frozenset({"report.json"})
_IMPORTANCES = "importances.parquet"


def write_weights(run: Path, out: Path, *, title: str) -> list[str]:
    """Write a new dataset folder with the models below `run`, and its metadata.

    Args:
        run: a run, a model's folder, or a kernel's output; searched at any depth.

    Returns:
        "COLLECTION/MEMBER" of each model.

    Raises:
        UsageError: `out` is in the way, or Kaggle would refuse the title.
        PipelineError: no model, two that differ under one name, an unfinished one, or a credential
            in a file.
    """
    require_free(out)
    subtitle = "Trained models that rank XLA compiler configurations"
    metadata = dataset_metadata(title, subtitle=subtitle, licence="CC-BY-4.0")
    found = (model for model in find_models(run) if model.place != SHARED_FOLDER)
    models = dict(sorted(one_of_each(found).items()))
    for model in models.values():
        if not model.is_done:
            raise PipelineError(f"{model.folder}: its training has not ended; --resume ends it")
    if not models:
        raise PipelineError(f"{run}: holds no run folder of a model")
    try:
        for (place, member), model in models.items():
            for path in sorted(model.folder.iterdir()):
                if _is_needed(path):
                    write_bytes(out / "models" / place / member / path.name, path.read_bytes())
        seal(out, metadata)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
    return list(map("/".join, models))


def _is_needed(path: Path) -> bool:
    name = path.name
    if not path.is_file() or name.startswith((".", _CHECKPOINTS)) or name in _NOT_NEEDED:
        return False
    return name in {CONFIG, DONE, _IMPORTANCES} or path.suffix in _NEEDED_SUFFIXES
