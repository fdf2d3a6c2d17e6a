"""A folder that becomes a Kaggle dataset: its metadata, its files, and their checksums."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.kaggle.plain_names import escaped
from common.kaggle.session import known_secrets
from kernels.build.metadata import is_plain, slug_of

DATASET_METADATA_FILE = "dataset-metadata.json"
CHECKSUMS = "SHA256SUMS"

# Kaggle's names of licences that fit a dataset of one's own making.
LICENCES = (
    "CC0-1.0",
    "CC-BY-4.0",
    "CC-BY-SA-4.0",
    "apache-2.0",
    "copyright-authors",
    "other",
    "unknown",
)
_SHORTEST, _LONGEST = 6, 50  # characters of a title and of a slug, Kaggle's limits
_SHORTEST_SUBTITLE, _LONGEST_SUBTITLE = 20, 80
_CHUNK_BYTES = 1 << 20
# What the client leaves out of the folder itself without a word, whatever the suffix.
_NOT_SENT = frozenset(
    {
        "datapackage",
        "dataset-cover-image",
        "kernel-metadata",
        "model-metadata",
        "model-instance-metadata",
    }
)


@dataclass(frozen=True)
class DatasetMetadata:
    """The fields that Kaggle is told, in the order in which they are written."""

    id: str  # the slug; the push puts the owner before it
    title: str
    subtitle: str
    description: str
    licenses: Sequence[dict[str, str]]
    isPrivate: bool = True  # noqa: N815 — Kaggle's key
    keywords: Sequence[str] = ()

    @classmethod
    def of(cls, title: str, *, subtitle: str, licence: str) -> "DatasetMetadata":
        """Make the metadata of a private dataset; its slug follows from the title.

        Raises:
            UsageError: Kaggle would refuse the title, the subtitle or the licence.
        """
        made = cls(slug_of(title), title, subtitle, "", [{"name": licence}])
        problem = problem_of(asdict(made))
        if problem:
            raise UsageError(f"dataset '{escaped(title)}': {problem}")
        return made


def problem_of(table: dict[str, Any]) -> str:
    """Say what Kaggle would refuse about a dataset's metadata; "" if nothing."""
    for key in ("id", "title"):
        if not isinstance(table.get(key), str):
            return f"key '{key}' is missing; expected a text"
    owner, _, slug = str(table["id"]).rpartition("/")
    title, subtitle = str(table["title"]), str(table.get("subtitle") or "")
    licences = table.get("licenses")
    names = [item.get("name") for item in licences] if isinstance(licences, list) else []
    checks = (
        (
            is_plain(title),
            "the title holds other signs than printable ASCII, of which Kaggle makes its name",
        ),
        (
            _SHORTEST <= len(title) <= _LONGEST,
            f"the title has {len(title)} characters; expected {_SHORTEST} to {_LONGEST}",
        ),
        (
            slug == slug_of(title) and len(slug) >= _SHORTEST,
            f"id '{slug}' does not belong to title '{title}'; expected '{slug_of(title)}', and "
            f"{_SHORTEST} or more characters of it",
        ),
        (
            not owner or re.fullmatch(r"[A-Za-z0-9_-]+", owner) is not None,
            f"id '{table['id']}': expected owner/slug",
        ),
        (
            not subtitle or _SHORTEST_SUBTITLE <= len(subtitle) <= _LONGEST_SUBTITLE,
            f"the subtitle has {len(subtitle)} characters; expected {_SHORTEST_SUBTITLE} to "
            f"{_LONGEST_SUBTITLE}",
        ),
        (
            len(names) == 1 and names[0] in LICENCES,
            f"key 'licenses': expected one of {', '.join(LICENCES)}",
        ),
        (isinstance(table.get("isPrivate"), bool), "key 'isPrivate': expected true or false"),
    )
    return next((problem for is_good, problem in checks if not is_good), "")


def require_free(out: Path) -> None:
    """Refuse a folder that holds something: old files would be sent with the new ones.

    Raises:
        UsageError: `out` is no folder, or not an empty one.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: is in the way; expected a new or empty folder")


def seal(folder: Path, metadata: DatasetMetadata) -> None:
    """Write the checksums of a folder's files, then its metadata: without it nothing is sent.

    Raises:
        PipelineError: a file holds a Kaggle credential of this machine.
    """
    _refuse_secrets(folder)
    lines = [f"{digest}  {name}\n" for name, digest in _digests(folder).items()]
    write_text(folder / CHECKSUMS, "".join(lines))
    text = json.dumps(asdict(metadata), indent=2, ensure_ascii=False) + "\n"
    write_text(folder / DATASET_METADATA_FILE, text)


def read_dataset(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Read a dataset folder: its metadata, and the files to send, "/" apart, sorted.

    Raises:
        PipelineError: no or wrong metadata, nothing to send, a file that Kaggle or its client
            would leave out in silence, one that changed since its checksum was written, or a
            Kaggle credential in one.
    """
    path = folder / DATASET_METADATA_FILE
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(
            f"{path}: cannot be read: {error.strerror}; `kernel wheels` and `kernel weights` "
            "write such folders"
        ) from error
    except ValueError as error:
        raise PipelineError(f"{path}: not a JSON file: {error}") from error
    problem = problem_of(table) if isinstance(table, dict) else "expected a JSON object"
    if problem:
        raise PipelineError(f"{path}: {problem}")
    names = files_to_send(folder)
    if not names:
        raise PipelineError(f"{folder}: holds no file to send")
    _check_digests(folder)
    _refuse_secrets(folder)
    return table, names


def content_digest(folder: Path, table: dict[str, Any]) -> str:
    """Return the SHA-256, in hex, of all that a push of the folder sends but for its message."""
    told = {"metadata": table, "files": _digests(folder)}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def files_to_send(folder: Path) -> list[str]:
    """List a dataset folder's files but for its metadata, "/" apart, sorted.

    Raises:
        PipelineError: a hidden or empty file, a link, or a name that the client leaves out.
    """
    names = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name == DATASET_METADATA_FILE:
            continue
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise PipelineError(f"{path}: a link or a device; expected plain files")
        if any(part.startswith(".") for part in Path(name).parts) or Path(name).stem in _NOT_SENT:
            raise PipelineError(f"{path}: would not be sent; remove it or give it another name")
        if path.is_file():
            if path.stat().st_size == 0:
                raise PipelineError(f"{path}: is empty; Kaggle may leave such files out; remove it")
            names.append(name)
    return names


def _digests(folder: Path) -> dict[str, str]:
    names = [name for name in files_to_send(folder) if name != CHECKSUMS]
    return {name: _digest(folder / name) for name in names}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_digests(folder: Path) -> None:
    """Compare the files with their list of checksums, if the folder has one."""
    path = folder / CHECKSUMS
    if not path.exists():
        return
    listed = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        listed[name] = digest
    digests = _digests(folder)
    for name in sorted({*listed, *digests}):
        if listed.get(name) != digests.get(name):
            raise PipelineError(
                f"{folder / name}: is not as {CHECKSUMS} says; write the folder again"
            )


def _refuse_secrets(folder: Path) -> None:
    """Refuse to send a Kaggle credential of this machine, wherever in a file it lies."""
    secrets = [secret.encode() for secret in known_secrets()]
    if not secrets:
        return
    overlap = max(map(len, secrets)) - 1
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            tail = b""
            while chunk := file.read(_CHUNK_BYTES):
                window = tail + chunk
                if any(secret in window for secret in secrets):
                    raise PipelineError(
                        f"{path}: holds a Kaggle credential of this machine; take it out"
                    )
                tail = window[-overlap:] if overlap else b""
