"""kernel-metadata.json: what Kaggle is told about a kernel, every field of it."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common.errors import PipelineError, UsageError

METADATA_FILE = "kernel-metadata.json"

# Kaggle's name of its pair of T4 cards. Without a name a P100 is lent, which the current torch
# wheels no longer support.
T4 = "NvidiaTeslaT4"

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
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def slug_of(title: str) -> str:
    """Return the slug that Kaggle makes of a title; the kernel's id must end in it.

    >>> slug_of("Fast or slow: cpu_small")
    'fast-or-slow-cpu-small'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def check_title(title: str, ending: str = "") -> None:
    """Refuse a title that Kaggle would refuse.

    Raises:
        UsageError: it is too short or too long, or not plain ASCII.
    """
    fits = len(slug_of(title)) >= _SHORTEST_TITLE and len(title) <= _LONGEST_TITLE
    if not (fits and title.isascii() and title.isprintable()):
        raise UsageError(
            f"kernel title {title!a}: {len(title)} characters; expected {_SHORTEST_TITLE} to "
            f"{_LONGEST_TITLE} of plain ASCII; --title takes {_LONGEST_TITLE - len(ending)} at most"
        )


def check_source(option: str, source: str) -> None:
    """Refuse what cannot name a dataset or a kernel to attach by `option`, such as "--dataset".

    Raises:
        UsageError: says what was expected.
    """
    if source.startswith("OWNER/"):  # as the README has it
        raise UsageError(f"{option} {source}: write the Kaggle user's name for OWNER")
    if not re.fullmatch(r"[\w-]+/[\w-]+", source):
        raise UsageError(f"{option} {source!r}: expected owner/slug, as in its address")


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read a kernel folder's metadata.

    Raises:
        PipelineError: the file, one of its keys or the kernel's source is missing.
    """
    if not (folder / METADATA_FILE).exists():
        raise PipelineError(f"{folder}: no kernel's folder; `kernel build` writes one")
    table = read_object(folder / METADATA_FILE, ("id", "title", "code_file"))
    if not (folder / table["code_file"]).is_file():
        raise PipelineError(f"{folder / table['code_file']}: no such file; build the kernel again")
    return table


def read_object(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Read a JSON object that has a text under each of `keys`.

    Raises:
        PipelineError: names the file and what is missing.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}; write the folder again") from error
    found: dict[str, Any] = table if isinstance(table, dict) else {}
    for key in keys:
        if not (isinstance(found.get(key), str) and found[key]):
            raise PipelineError(f"{path}: key '{key}' is missing; expected a text")
    return found
