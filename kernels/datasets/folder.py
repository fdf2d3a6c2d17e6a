"""A folder that becomes a Kaggle dataset: its metadata, its files, and their checksums."""

import hashlib
import json
from pathlib import Path
from typing import Any

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.kaggle.secrets import refuse_secrets
from kernels.building.metadata import read_object, slug_of

DATASET_METADATA_FILE = "dataset-metadata.json"
CHECKSUMS = "SHA256SUMS"

# Kaggle's names of licences that fit a dataset of one's own making.
LICENCES = (
    *("CC0-1.0", "CC-BY-4.0", "CC-BY-SA-4.0", "apache-2.0"),
    *("copyright-authors", "other", "unknown"),
)
_SHORTEST, _LONGEST = 6, 50  # characters of a title, Kaggle's limits


def dataset_metadata(title: str, *, subtitle: str, licence: str) -> dict[str, Any]:
    """Return the metadata of a private dataset, under Kaggle's keys; the push adds the owner.

    Raises:
        UsageError: Kaggle would refuse the title or the licence.
    """
    if not _SHORTEST <= len(slug_of(title)) <= len(title) <= _LONGEST:
        raise UsageError(f"dataset title {title!a}: expected {_SHORTEST} to {_LONGEST} characters")
    if licence not in LICENCES:
        raise UsageError(f"licence {licence!a}: expected one of {', '.join(LICENCES)}")
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
    """Write the checksums of a folder's files, then its metadata: without it nothing is sent.

    Raises:
        PipelineError: a file holds a Kaggle credential of this machine.
    """
    lines = [f"{digest}  {name}\n" for name, digest in _digests(folder).items()]
    write_text(folder / CHECKSUMS, "".join(lines))
    text = json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"
    write_text(folder / DATASET_METADATA_FILE, text)


def read_dataset(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a dataset folder: its metadata, and the files to send, "/" apart, sorted.

    Raises:
        PipelineError: no metadata, a file that Kaggle may leave out, one that changed since its
            checksum was written, or a Kaggle credential in one.
    """
    table = read_object(folder / DATASET_METADATA_FILE, ("id", "title"))
    if table.get("licenses") not in [[{"name": name}] for name in LICENCES]:
        known = ", ".join(LICENCES)
        raise PipelineError(
            f"{folder / DATASET_METADATA_FILE}: key 'licenses': expected one of {known}"
        )
    found, sums = _digests(folder), folder / CHECKSUMS
    if sums.is_file():
        lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
        listed = dict(line.split("  ", 1)[::-1] for line in lines if "  " in line)
        changed = sorted(dict(listed.items() ^ found.items()))
        if changed:
            raise PipelineError(
                f"{folder / changed[0]}: is not as {CHECKSUMS} says; write the folder again"
            )
    return table, files_to_send(folder)


def content_digest(folder: Path, table: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of all that a push of the folder sends but for its message."""
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
        if name != CHECKSUMS:
            content = (folder / name).read_bytes()
            refuse_secrets([(folder / name, content)])
            digests[name] = hashlib.sha256(content).hexdigest()
    return digests
