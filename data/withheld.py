"""Runtimes of a made or measured tree's test split, kept apart from npz/ as the real ones are."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from common.atomic import atomic_path
from common.errors import PipelineError
from data.npz.archive import Archive

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
    """Write runtimes (c,) int64 ns, and of kernels those of the default, by submission ID."""
    members = dict(sorted(runtimes.items()))
    members |= {_NORMALIZER + name: of for name, of in sorted((normalizers or {}).items())}
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, **members)


def read_withheld(
    data_dir: Path,
) -> tuple[dict[str, NDArray[np.int64]], dict[str, NDArray[np.int64]]]:
    """Return both, as `write_withheld` takes them; PipelineError: missing or damaged."""
    path = data_dir / WITHHELD
    if not path.is_file():
        raise PipelineError(
            f"{path}: no such file; the sample, collected and synthetic data keep test runtimes "
            "there, those of the dataset are not public"
        )
    with Archive(path) as archive:
        found = {name: archive.array(name, dtype=np.int64, shape=(None,)) for name in archive.keys}
    names = [name for name in found if name.startswith(_NORMALIZER)]
    normalizers = {name.removeprefix(_NORMALIZER): found.pop(name) for name in names}
    return found, normalizers
