"""A folder that becomes a Kaggle dataset: its metadata and its files."""

import hashlib
import json
from pathlib import Path
from typing import Any

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.kaggle.secrets import refuse_secrets
from kernels.building.metadata import read_object, slug_of

DATASET_METADATA_FILE = "dataset-metadata.json"
_SHORTEST, _LONGEST = 6, 50  # characters of a title, Kaggle's limits


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


def require_free(out: Path) -> None:
    """Refuse a folder that holds something: old files would be sent with the new ones.

    Raises:
        UsageError: `out` is no folder, or not an empty one.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: is in the way; expected a new or empty folder")


def seal(folder: Path, metadata: dict[str, Any]) -> None:
    """Write a folder's metadata, once its files are there: without it nothing is sent.

    Raises:
        PipelineError: a file holds a Kaggle credential of this machine.
    """
    _digests(folder)
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    write_text(folder / DATASET_METADATA_FILE, text)


def read_dataset(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a dataset folder: its metadata, and the files to send, "/" apart, sorted.

    Raises:
        PipelineError: no metadata, or a file that Kaggle may leave out.
    """
    table = read_object(folder / DATASET_METADATA_FILE, ("id", "title"))
    return table, files_to_send(folder)


def content_digest(folder: Path, table: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of all that a push of the folder sends but for its message.

    Raises:
        PipelineError: a file holds a Kaggle credential of this machine.
    """
    told = {"metadata": table, "files": _digests(folder)}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def files_to_send(folder: Path) -> list[str]:
    """List a dataset folder's files but for its metadata, "/" apart, sorted.

    Raises:
        PipelineError: a link, or a hidden or empty file: Kaggle leaves such out.
    """
    names = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or path.name.startswith("."):
            raise PipelineError(f"{path}: is hidden or a link; expected plain files")
        if path.is_file() and name != DATASET_METADATA_FILE:
            if path.stat().st_size == 0:
                raise PipelineError(f"{path}: is empty; Kaggle may leave such files out; remove it")
            names.append(name)
    return names


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for name in files_to_send(folder):
        content = (folder / name).read_bytes()
        refuse_secrets([(folder / name, content)])
        digests[name] = hashlib.sha256(content).hexdigest()
    return digests
