"""The revision of the code, and seeded randomness."""

import hashlib
import os
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np

from common.settings import ROOT

# A file in a kernel's archive, with the result of `revision` at the time of the build.
REVISION_FILE = "REVISION"


def version() -> str:
    """Return the version of the project, from a checkout or else from the installed package."""
    project = ROOT / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    return metadata.version("fast-or-slow")


def revision(root: Path = ROOT) -> str | None:
    """Return the revision, with "+changed" if code, not results, differs; None if it is unknown.

    A kernel's code is not in git. It has a file with its revision, which a checkout ignores.
    """
    if not (root / ".git").exists() and (root / REVISION_FILE).is_file():
        return (root / REVISION_FILE).read_text(encoding="utf-8").strip()
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        code = "--", ".", ":(exclude)docs/results"
        return f"{head}+changed" if _git(root, "status", "--porcelain", "-uno", *code) else head
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    # In a git hook, variables name another checkout.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    process = subprocess.run(command, capture_output=True, check=True, timeout=30, env=environment)  # noqa: S603
    return os.fsdecode(process.stdout).strip()


def generator(seed: int, *labels: str) -> np.random.Generator:
    """Return a random generator of a seed and of labels, for example a stage and a graph."""
    digest = hashlib.blake2b("/".join(labels).encode(), digest_size=8).digest()
    return np.random.default_rng([seed, int.from_bytes(digest, "big")])
