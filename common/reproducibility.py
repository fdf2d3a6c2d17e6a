"""What a result hangs on besides its input: the code's revision, and seeded randomness."""

import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np

from common.settings import ROOT

REVISION_FILE = "REVISION"  # in a kernel's archive: what `revision` said where it was built


def revision(root: Path = ROOT) -> str | None:
    """Return the code's git revision, "+changed" if files differ from it; None if not known.

    A kernel's code lies outside git, and has a file that says what it was built from. In a checkout
    such a file says nothing.
    """
    if not (root / ".git").exists() and (root / REVISION_FILE).is_file():
        return (root / REVISION_FILE).read_text(encoding="utf-8").strip()
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return f"{head}+changed" if _git(root, "status", "--porcelain", "-uno") else head
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    # Within a git hook, variables name another checkout.
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, check=True, timeout=30, env=own)  # noqa: S603
    return os.fsdecode(done.stdout).strip()


def generator(seed: int, *labels: str) -> np.random.Generator:
    """Return a generator that depends on `seed` and `labels` only."""
    digest = hashlib.blake2b("/".join(labels).encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])
