"""The manifest of a measured tree: where, when and how well each graph was measured."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import PipelineError
from common.files import read_json, write_text
from data.tree import file_from_path

MANIFEST = "manifest.json"
PARTS = ("environments", "graphs", "left_out")


def read_manifest(out: Path) -> dict[str, dict[str, Any]]:
    """Return the PARTS of a manifest, by digest or submission ID; all empty without a file."""
    path = out / MANIFEST
    parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    if path.is_file():
        form = f"objects {', '.join(PARTS)}"
        parts |= read_json(path, dict[str, dict[str, Any]], expected=form)
    return parts


def platforms_of(out: Path) -> list[str]:
    """Return the platforms of a measured tree, for example "cpu"; none without a manifest."""
    return sorted(
        {facts.get("platform", "") for facts in read_manifest(out)["environments"].values()}
    )


def measured_of(path: Path) -> dict[str, Any]:
    """Return the manifest's entry of a graph's file; empty if there is none."""
    try:
        file = file_from_path(path)
    except PipelineError:
        return {}  # outside the official folders
    return read_manifest(file.data_dir)["graphs"].get(file.submission_id, {})


@contextmanager
def edit_manifest(out: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the manifest to a block that changes it, then write it. NaN becomes null."""
    manifest = read_manifest(out)
    yield manifest
    text = json.dumps(_finite(manifest), indent=1, allow_nan=False, ensure_ascii=False)
    write_text(out / MANIFEST, text + "\n")


def add_environment(manifest: Mapping[str, dict[str, Any]], facts: Mapping[str, str]) -> str:
    """Add a machine and its versions to the manifest."""
    text = json.dumps(dict(facts), sort_keys=True).encode()
    digest = hashlib.blake2b(text, digest_size=4).hexdigest()
    manifest["environments"][digest] = dict(facts)
    return digest


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
