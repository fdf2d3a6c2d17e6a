"""Runtimes of a made or measured tree's test split, kept apart from npz/ as the real ones are."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import atomic_path
from common.errors import PipelineError
from data.npz.read import Archive

WITHHELD = Path("private") / "test_runtimes.npz"
_NORMALIZER = "normalizer/"


def file_stem(name: str, split: str) -> str:
    """Return a graph's file stem: its name, or 32 hex digits of it in the test split."""
    if split != "test":
        return name
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def write_withheld(
    path: Path,
    runtimes: Mapping[str, NDArray[np.int64]],
    *,
    normalizers: Mapping[str, NDArray[np.int64]] | None = None,
) -> None:
    """Write withheld test runtimes.

    Args:
        runtimes: submission ID to (c,) int64 runtimes in ns.
        normalizers: submission ID of a tile kernel to (c,) int64 runtimes of its default config.

    Raises:
        PipelineError: the file cannot be written.
    """
    members = {name: runtimes[name] for name in sorted(runtimes)}
    for name in sorted(normalizers or {}):
        members[_NORMALIZER + name] = (normalizers or {})[name]
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **members)


def read_withheld(data_dir: Path) -> dict[str, NDArray[np.int64]]:
    """Return submission ID to (c,) int64 runtimes in ns of the test split of `data_dir`.

    Raises:
        PipelineError: the file is missing or damaged.
    """
    members = _read_members(data_dir / WITHHELD)
    return {name: v for name, v in members.items() if not name.startswith(_NORMALIZER)}


def read_withheld_normalizers(data_dir: Path) -> dict[str, NDArray[np.int64]]:
    """Return submission ID to (c,) int64 normalizers in ns of the test kernels of `data_dir`.

    Raises:
        PipelineError: the file is missing or damaged.
    """
    members = _read_members(data_dir / WITHHELD)
    return {
        name.removeprefix(_NORMALIZER): values
        for name, values in members.items()
        if name.startswith(_NORMALIZER)
    }


def _read_members(path: Path) -> dict[str, NDArray[np.int64]]:
    if not path.is_file():
        raise PipelineError(
            f"{path}: no such file; the sample, collected and synthetic data keep test runtimes "
            "there, those of the dataset are not public"
        )
    with Archive(path) as archive:
        return {name: archive.array(name, dtype=np.int64, shape=(None,)) for name in archive.keys}
