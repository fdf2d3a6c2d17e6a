"""The project's own code as one zip archive whose bytes depend on nothing but the files."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from data.errors import PipelineError
from kernels.credentials import known_secrets

PACKAGES = ("data", "features", "models", "ensembles", "submissions", "kernels", "configs")
MODULES = ("pipeline.py", "settings.py", "console.py")

# Data sets, caches and results lie beside the code but are no part of it.
_LEFT_OUT_FOLDERS = frozenset({"data/sample", "data/raw", "data/store"})
_LEFT_OUT_NAMES = frozenset({"__pycache__", "kaggle.json", "access_token"})
_LEFT_OUT_SUFFIXES = frozenset({".pyc", ".pyo", ".md", ".png"})  # no code, or made of it
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can hold


def collect_files(root: Path) -> dict[str, bytes]:
    """Read what a kernel needs of the project at `root`: path below root, "/" apart, to content.

    Raises:
        PipelineError: `root` holds no pipeline.py or settings.py, or a file cannot be read.
    """
    paths = [root / name for name in MODULES]
    paths += [path for package in PACKAGES for path in (root / package).rglob("*")]
    files = {}
    for path in paths:
        relative = path.relative_to(root)
        if relative.as_posix() in MODULES or (path.is_file() and _belongs(relative)):
            files[relative.as_posix()] = _read(path)
    return files


def refuse_secrets(files: Mapping[str, bytes]) -> None:
    """Refuse files that hold one of this machine's Kaggle credentials: kernels can be shared.

    Raises:
        PipelineError: names the first such file, never the credential.
    """
    secrets = [secret.encode() for secret in known_secrets()]
    for name, content in sorted(files.items()):
        if any(secret in content for secret in secrets):
            raise PipelineError(
                f"{name}: holds a Kaggle credential of this machine; take it out, then build again"
            )


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return `files` as a zip archive: sorted names, one fixed date, the same rights for all.

    Its members are not compressed: the script compresses the archive as one, which is smaller.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(files.items()):
            member = zipfile.ZipInfo(name, _FIXED_DATE)
            member.create_system = 3  # Unix, wherever it is built
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return packed.getvalue()


def _belongs(relative: Path) -> bool:
    """Say whether a file belongs to the code: not hidden, not a cache, not data."""
    folders = {parent.as_posix() for parent in relative.parents}
    return (
        not folders & _LEFT_OUT_FOLDERS
        and not any(part.startswith(".") or part in _LEFT_OUT_NAMES for part in relative.parts)
        and relative.suffix not in _LEFT_OUT_SUFFIXES
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror}") from error
