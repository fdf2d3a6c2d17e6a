"""Folders that become Kaggle datasets, of trained models and of wheels: files and metadata."""

import hashlib
import re
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import run as run_pip
from typing import Any

from common import settings
from common.atomic import write_bytes, write_text
from common.errors import PipelineError, UsageError
from common.kaggle.errors import redact, refuse_secrets
from ensembles.trained_models import find_models
from kernels.building.build import REQUIRED_MODULES
from kernels.building.metadata import as_json, read_object, slug_of
from models.run_folder import CONFIG, DONE

DATASET_METADATA_FILE = "dataset-metadata.json"
_SHORTEST, _LONGEST = 6, 50  # characters of a title, Kaggle's limits

# What models of every kind leave that ranks with them; scores, pictures and reports do not.
_NEEDED_SUFFIXES = frozenset({".safetensors", ".json", ".txt", ".jsonl"})
_NEEDED = frozenset({CONFIG, DONE, "importances.parquet"})

WHEELS_TITLE = "Fast or slow wheels"  # its slug ends in -wheels, by which kernels find it

_SIGNED_ADDRESS = re.compile(r"://[^/\s@]+@")  # an index may be given with a password in it


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
    _require_free(out)
    subtitle = "Trained models that rank XLA compiler configurations"
    metadata = dataset_metadata(title, subtitle=subtitle, licence="CC-BY-4.0")
    models = dict(sorted(find_models(run).items()))
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
    left_out = path.name.startswith((".", "checkpoint.")) or path.name == "report.json"
    is_named = path.name in _NEEDED or path.suffix in _NEEDED_SUFFIXES
    return is_named and not left_out and path.is_file()


def write_wheels(out: Path) -> list[Path]:
    """Download wheels into a new dataset folder, with its metadata.

    The same pinned versions give the same bytes.

    Raises:
        UsageError: `out` is in the way.
        PipelineError: pip cannot get one.
    """
    _require_free(out)
    requirements = (settings.ROOT / "requirements.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w-]+)==(\S+)", requirements, re.MULTILINE)
    pins = {name.replace("_", "-"): version for name, version in pinned}
    with tempfile.TemporaryDirectory(prefix="wheels-") as folder:
        _download([f"{name}=={pins[name]}" for name in REQUIRED_MODULES.values()], Path(folder))
        wheels = sorted(Path(folder).glob("*.whl"))
        for wheel in wheels:
            write_bytes(out / wheel.name, wheel.read_bytes())
    subtitle = "Pure-Python packages that a kernel without internet installs"
    # Each wheel holds its own licence.
    seal(out, dataset_metadata(WHEELS_TITLE, subtitle=subtitle, licence="other"))
    return [out / wheel.name for wheel in wheels]


def _download(wanted: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), *wanted]
    ended = run_pip(command, capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        said = _SIGNED_ADDRESS.sub("://***@", redact((errors or ["it said nothing"])[-1]))
        raise PipelineError(f"pip download {' '.join(wanted)}: {said}; check the package index")


def dataset_metadata(title: str, *, subtitle: str, licence: str) -> dict[str, Any]:
    """Return the metadata of a private dataset, under Kaggle's keys; the push adds the owner.

    Raises:
        UsageError: Kaggle would refuse the title.
    """
    if not _SHORTEST <= len(slug_of(title)) <= len(title) <= _LONGEST:
        raise UsageError(f"dataset title {title!a}: expected {_SHORTEST} to {_LONGEST} characters")
    return {
        "id": slug_of(title),
        "title": title,
        "subtitle": subtitle,
        "description": "",
        "licenses": [{"name": licence}],
        "isPrivate": True,
        "keywords": [],
    }


def _require_free(out: Path) -> None:  # old files would be sent with the new ones
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: is in the way; expected a new or empty folder")


def seal(folder: Path, metadata: dict[str, Any]) -> None:
    """Write a folder's metadata, once its files are there: without it nothing is sent.

    Raises:
        PipelineError: a file holds a Kaggle credential of this machine.
    """
    _digests(folder)
    write_text(folder / DATASET_METADATA_FILE, as_json(metadata))


def read_dataset(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a dataset folder: its metadata, and the SHA-256 of each file to send by its name.

    Raises:
        PipelineError: no metadata, a link or a hidden or empty file, which Kaggle may leave out, or
            one that holds a Kaggle credential of this machine.
    """
    return read_object(folder / DATASET_METADATA_FILE, ("id", "title")), _digests(folder)


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or path.name.startswith("."):
            raise PipelineError(f"{path}: is hidden or a link; expected plain files")
        if path.is_file() and name != DATASET_METADATA_FILE:
            content = path.read_bytes()
            if not content:
                raise PipelineError(f"{path}: is empty; Kaggle may leave such files out; remove it")
            refuse_secrets([(path, content)])
            digests[name] = hashlib.sha256(content).hexdigest()
    return digests
