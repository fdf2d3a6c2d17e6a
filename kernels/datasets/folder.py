"""A folder that becomes a Kaggle dataset: its metadata, its files, and their checksums."""

import hashlib
import json
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from common.kaggle.errors import escaped
from common.kaggle.secrets import known_secrets
from kernels.build.metadata import is_owner, is_plain, slug_of

DATASET_METADATA_FILE = "dataset-metadata.json"
CHECKSUMS = "SHA256SUMS"

# Kaggle's names of licences that fit a dataset of one's own making.
LICENCES = (
    *("CC0-1.0", "CC-BY-4.0", "CC-BY-SA-4.0", "apache-2.0"),
    *("copyright-authors", "other", "unknown"),
)
_SHORTEST, _LONGEST = 6, 50  # characters of a title and of a slug, Kaggle's limits
_SUBTITLE = (20, 80)


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
        for problem in _problems(asdict(made)):
            raise UsageError(f"dataset '{escaped(title)}': {problem}")
        return made


def _problems(table: Any) -> Iterator[str]:
    """Yield what Kaggle would refuse about a dataset's metadata."""
    if not isinstance(table, dict):
        yield "expected a JSON object"
    for key in ("id", "title"):
        if not isinstance(table.get(key), str):
            yield f"key '{key}' is missing; expected a text"
    owner, _, slug = table["id"].rpartition("/")
    title, subtitle = table["title"], str(table.get("subtitle") or "")
    if not is_plain(title):
        yield "the title holds other signs than printable ASCII, of which Kaggle makes its name"
    if not _SHORTEST <= len(title) <= _LONGEST:
        yield f"the title has {len(title)} characters; expected {_SHORTEST} to {_LONGEST}"
    if slug != slug_of(title) or len(slug) < _SHORTEST:
        yield (
            f"id '{slug}' does not belong to title '{title}'; expected '{slug_of(title)}', and "
            f"{_SHORTEST} or more characters of it"
        )
    if owner and not is_owner(owner):
        yield f"id '{table['id']}': expected owner/slug"
    shortest, longest = _SUBTITLE
    if subtitle and not shortest <= len(subtitle) <= longest:
        yield f"the subtitle has {len(subtitle)} characters; expected {shortest} to {longest}"
    if table.get("licenses") not in [[{"name": name}] for name in LICENCES]:
        yield f"key 'licenses': expected one of {', '.join(LICENCES)}"
    if not isinstance(table.get("isPrivate"), bool):
        yield "key 'isPrivate': expected true or false"


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
        PipelineError: no or wrong metadata, nothing to send, a file that Kaggle may leave out, one
            that changed since its checksum was written, or a Kaggle credential in one.
    """
    path = folder / DATASET_METADATA_FILE
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(
            f"{path}: cannot be read: {error.strerror}; `kernel wheels` and `kernel weights` "
            "write such folders"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{path}: not a JSON file: {error}") from error
    for problem in _problems(table):
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
        PipelineError: a hidden or empty file, or a link.
    """
    names = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name == DATASET_METADATA_FILE:
            continue
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise PipelineError(f"{path}: a link or a device; expected plain files")
        if any(part.startswith(".") for part in Path(name).parts):
            raise PipelineError(f"{path}: is hidden; remove it or give it another name")
        if path.is_file():
            if path.stat().st_size == 0:
                raise PipelineError(f"{path}: is empty; Kaggle may leave such files out; remove it")
            names.append(name)
    return names


def _digests(folder: Path) -> dict[str, str]:
    digests = {}
    for name in files_to_send(folder):
        if name != CHECKSUMS:
            with (folder / name).open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _check_digests(folder: Path) -> None:
    """Compare the files with their list of checksums, if the folder has one."""
    path = folder / CHECKSUMS
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    listed = dict(line.split("  ", 1)[::-1] for line in lines if "  " in line)
    found = _digests(folder)
    for name in sorted({*listed, *found}):
        if listed.get(name) != found.get(name):
            raise PipelineError(
                f"{folder / name}: is not as {CHECKSUMS} says; write the folder again"
            )


def _refuse_secrets(folder: Path) -> None:
    """Refuse to send a Kaggle credential of this machine, wherever in a file it lies."""
    secrets = [secret.encode() for secret in known_secrets()]
    metadata = [DATASET_METADATA_FILE] if (folder / DATASET_METADATA_FILE).exists() else []
    for name in [*files_to_send(folder), *metadata]:
        with (
            (folder / name).open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            if any(content.find(secret) >= 0 for secret in secrets):
                raise PipelineError(
                    f"{folder / name}: holds a Kaggle credential of this machine; take it out"
                )
