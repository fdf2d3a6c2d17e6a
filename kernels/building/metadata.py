"""kernel-metadata.json: what Kaggle is told about a kernel, every field of it."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import PipelineError

METADATA_FILE = "kernel-metadata.json"

# Kaggle's name of its pair of T4 cards. Without a name a P100 is lent, which the current torch
# wheels no longer support.
T4 = "NvidiaTeslaT4"


def kernel_metadata(
    title: str,
    *,
    notebook: bool = False,
    gpu: bool = True,
    dataset_sources: Sequence[str] = (),
    kernel_sources: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the metadata of a private kernel without internet; the push adds the owner."""
    slug = slug_of(title)
    return {
        "id": slug,
        "title": title,
        "code_file": f"{slug}.ipynb" if notebook else f"{slug}.py",
        "language": "python",
        "kernel_type": "notebook" if notebook else "script",
        "is_private": True,
        "enable_gpu": gpu,
        "enable_tpu": False,
        "enable_internet": False,
        "machine_shape": T4 if gpu else "",
        "keywords": [],
        "dataset_sources": list(dataset_sources),
        "competition_sources": ["predict-ai-model-runtime"],
        "kernel_sources": list(kernel_sources),
        "model_sources": [],
        "docker_image_pinning_type": "original",  # later versions of the kernel keep the image
    }


def slug_of(title: str) -> str:
    """Return the slug that Kaggle makes of a title; the kernel's id must end in it.

    >>> slug_of("Fast or slow: cpu_small")
    'fast-or-slow-cpu-small'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


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


def as_json(table: Mapping[str, Any]) -> str:
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"


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
