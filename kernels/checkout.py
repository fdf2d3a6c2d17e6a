"""What git says of a project: which files are its own, changed or not, and which are not."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LIMIT_S = 30


@dataclass(frozen=True)
class Checkout:
    """The state of a git checkout; names are below its root, "/" apart, sorted.

    Attributes:
        tracked: what is committed, or about to be.
        changed: tracked files that differ from the last commit.
        untracked: files that git neither knows nor ignores.
    """

    tracked: Sequence[str]
    changed: Sequence[str]
    untracked: Sequence[str]


def checkout_of(root: Path, entry: str) -> Checkout | None:
    """Ask git about the project at `root`; None if it is no checkout, or there is no git.

    Args:
        root: the project's folder.
        entry: a file that each checkout of the project has: a project that was unpacked within
            somebody else's checkout is none.
    """
    tracked = _names(root, "ls-files", "-z")
    if tracked is None or entry not in tracked:
        return None
    changed = _names(root, "diff", "--name-only", "--relative", "-z", "HEAD") or []
    untracked = _names(root, "ls-files", "--others", "--exclude-standard", "-z") or []
    return Checkout(tracked, changed, untracked)


def _names(root: Path, *arguments: str) -> list[str] | None:
    """Return the sorted names that git lists; None if it fails."""
    # Within a git hook these variables name another checkout.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=True, timeout=_LIMIT_S, env=environment
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return sorted(name for name in done.stdout.split("\0") if name)
