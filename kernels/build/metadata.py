"""kernel-metadata.json: what Kaggle is told about a kernel, every field of it."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from common.errors import PipelineError, UsageError

METADATA_FILE = "kernel-metadata.json"

# Kaggle's name of its pair of T4 cards. Without a name a P100 is lent, which the current torch
# wheels no longer support.
T4 = "NvidiaTeslaT4"

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PLACEHOLDER = "OWNER"  # in the README's examples
_SHORTEST_TITLE, _LONGEST_TITLE = 5, 50  # characters, Kaggle's limits


@dataclass(frozen=True)
class KernelMetadata:
    """The fields that the client reads, in the order in which they are written."""

    id: str  # the slug; the push puts the owner before it
    title: str
    code_file: str
    language: str = "python"
    kernel_type: str = "script"
    is_private: bool = True
    enable_gpu: bool = True
    enable_tpu: bool = False
    enable_internet: bool = False
    machine_shape: str = T4
    keywords: Sequence[str] = ()
    dataset_sources: Sequence[str] = ()
    competition_sources: Sequence[str] = ("predict-ai-model-runtime",)
    kernel_sources: Sequence[str] = ()
    model_sources: Sequence[str] = ()
    docker_image: str | None = None
    docker_image_pinning_type: str = "original"  # later versions of the kernel keep the image

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def slug_of(title: str) -> str:
    """Return the slug that Kaggle makes of a title in ASCII; the kernel's id must end in it.

    >>> slug_of("Fast or slow: cpu_small")
    'fast-or-slow-cpu-small'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def is_plain(text: str) -> bool:
    """Tell whether a text is printable ASCII: of others Kaggle makes slugs by rules of its own."""
    return text.isascii() and text.isprintable()


def check_title(title: str, ending: str = "") -> None:
    """Refuse a title that Kaggle would refuse.

    Args:
        title: all of it.
        ending: what is put behind the text that a user chooses.

    Raises:
        UsageError: it is too short or too long, or so is the slug made of it; or it is not plain.
    """
    fits = _SHORTEST_TITLE <= len(title) <= _LONGEST_TITLE
    if not is_plain(title) or not fits or len(slug_of(title)) < _SHORTEST_TITLE:
        left = _LONGEST_TITLE - len(ending)
        behind = f": '{ending}' is put behind it" if ending else ""
        raise UsageError(
            f"kernel title '{title}': {len(title)} characters; expected {_SHORTEST_TITLE} to "
            f"{_LONGEST_TITLE} of printable ASCII, of which letters, digits and single hyphens "
            f"make a name of {_SHORTEST_TITLE} or more; pass --title with a text of at most {left} "
            f"characters{behind}"
        )


def check_kernel_id(kernel_id: str) -> None:
    """Refuse what names no kernel, before the client does in its own words.

    Raises:
        UsageError: says what was expected.
    """
    owner, slash, slug = kernel_id.rpartition("/")
    if not _SLUG.fullmatch(slug) or len(slug) < _SHORTEST_TITLE or (slash and not is_owner(owner)):
        raise UsageError(
            f"kernel '{kernel_id}': expected owner/slug, or the slug of one's own: "
            f"{_SHORTEST_TITLE} or more small letters, digits and hyphens"
        )


def check_source(option: str, source: str) -> None:
    """Refuse what cannot name a dataset or a kernel to attach by `option`, such as "--dataset".

    Raises:
        UsageError: says what was expected.
    """
    owner, slash, slug = source.partition("/")
    if owner == _PLACEHOLDER:
        raise UsageError(f"{option} {source}: write the Kaggle user's name for {_PLACEHOLDER}")
    if not (slash and is_owner(owner) and _SLUG.fullmatch(slug)):
        raise UsageError(
            f"{option} '{source}': expected owner/slug, as in its address; the slug has small "
            "letters, digits and hyphens"
        )


def is_owner(text: str) -> bool:
    """Tell whether a text can name a user or an organisation of Kaggle."""
    return _OWNER.fullmatch(text) is not None


def read_metadata(folder: Path) -> dict[str, object]:
    """Read a kernel folder's metadata and check what the client would only print about.

    Raises:
        PipelineError: the file is missing or not a JSON object, its source is missing, or the
            title and the id do not belong together.
    """
    path = folder / METADATA_FILE
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PipelineError(
            f"{path}: cannot be read: {error.strerror}; expected a folder that kernel build wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(table, dict):
        raise PipelineError(f"{path}: expected a JSON object; build the kernel again")
    for key in ("id", "title", "code_file"):
        if not isinstance(table.get(key), str) or not table[key]:
            raise PipelineError(f"{path}: key '{key}' is missing; expected a text")
    expected = slug_of(table["title"])
    if table["id"].rpartition("/")[2] != expected:
        raise PipelineError(
            f"{path}: id '{table['id']}' does not belong to title '{table['title']}'; expected it "
            f"to end in '{expected}'"
        )
    if not (folder / table["code_file"]).is_file():
        raise PipelineError(f"{folder / table['code_file']}: no such file; build the kernel again")
    return table
