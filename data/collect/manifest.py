"""The manifest of a measured tree: where, when and how well each graph was measured."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.atomic import write_text
from common.errors import PipelineError, UsageError
from data.collect.job import MANIFEST, Job
from data.tree import file_from_path

PARTS = ("environments", "graphs", "left_out")


def read_manifest(out: Path) -> dict[str, dict[str, Any]]:
    """Return the manifest of `out`, an empty one where there is none.

    Its parts: "environments" (by digest), "graphs" and "left_out" (by submission ID).

    Raises:
        PipelineError: it cannot be read, or is no manifest.
    """
    path = out / MANIFEST
    if not path.is_file():
        return {part: {} for part in PARTS}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict) or any(not isinstance(found.get(p), dict) for p in PARTS):
        raise PipelineError(f"{path}: is no manifest; expected objects {', '.join(PARTS)}")
    return found


def measured_of(path: Path) -> dict[str, Any]:
    """Return what the manifest of its data folder says of a graph's file; empty if nothing does."""
    try:
        file = file_from_path(path)
    except PipelineError:
        return {}  # outside the official folders
    parents = path.resolve().parents
    folder = parents[min(2 + len(Path(file.collection.folder).parts), len(parents) - 1)]
    return read_manifest(folder)["graphs"].get(file.submission_id, {})


@contextmanager
def edit_manifest(out: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Yield the manifest of `out` to a block that changes it, then write it, NaN as null.

    Raises:
        PipelineError: the manifest cannot be read or written.
    """
    manifest = read_manifest(out)
    yield manifest
    text = json.dumps(_finite(manifest), indent=1, allow_nan=False, ensure_ascii=False)
    write_text(out / MANIFEST, text + "\n")


def is_done(manifest: dict[str, dict[str, Any]], job: Job, out: Path) -> bool:
    """Tell whether the graph is measured, or was left out; more rounds go on with its journal.

    Raises:
        UsageError: it was measured with another request; names the first difference.
    """
    known = manifest["graphs"] | manifest["left_out"]
    if job.submission_id not in known:
        return False
    entry = known[job.submission_id]
    for key, value in job.request().items():
        if key == "rounds" and entry.get(key, value) < value and job.journal(out).is_file():
            return False
        if entry.get(key) != value:
            raise UsageError(
                f"{job.submission_id}: is there already, measured with {key} "
                f"{entry.get(key)}, not {value}; give another --out"
            )
    return True


def check_family(manifest: dict[str, dict[str, Any]], job: Job) -> None:
    """Keep all programs of a family in one split: siblings in two would make scores too good.

    Raises:
        UsageError: names the graph that lies in another split.
    """
    for submission_id, entry in manifest["graphs"].items():
        same = submission_id.split(":")[0] == job.collection.kind and entry["family"] == job.family
        if same and entry["split"] != job.split:
            raise UsageError(
                f"{job.submission_id}: its family {job.family} lies in the {entry['split']} split "
                f"({entry['program']}), not in {job.split}; give --split {entry['split']}, another "
                "FAMILY or another --out"
            )


def add_environment(manifest: Mapping[str, dict[str, Any]], facts: Mapping[str, str]) -> str:
    """Note a machine and its versions once; return the digest that graphs refer to it by."""
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
