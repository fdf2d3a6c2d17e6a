"""The project's own code as one zip archive whose bytes depend on nothing but the files.

That is, regular files of the suffixes that code has, tracked by git or not. Links are not followed.
"""

import importlib.util
import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from common.errors import PipelineError, UsageError
from common.git import REVISION_FILE, revision

ENTRY = "pipeline/__main__.py"
PACKAGES = (
    *("common", "data", "features", "models", "ensembles"),
    *("submissions", "kernels", "pipeline", "configs"),
)

# Data sets, caches and results lie beside the code but are no part of it.
_LEFT_OUT_FOLDERS = frozenset({"data/sample", "data/raw", "data/store"})
_LEFT_OUT_NAMES = frozenset({"__pycache__", "kaggle.json", "access_token"})
_SUFFIXES = frozenset({".py", ".toml", ".csv", ".tsv", ".gz", ".j2", ".proto", ".html"})
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can hold


def collect_files(root: Path) -> dict[str, bytes]:
    """Read what a kernel needs of the project at `root`, and its revision: path below, to content.

    Raises:
        PipelineError: `root` holds no pipeline/__main__.py.
    """
    paths = [path for package in PACKAGES for path in (root / package).rglob("*")]
    files = _read(root, paths)
    if ENTRY not in files:
        raise PipelineError(f"{root / ENTRY}: no such file; expected the project's own folder")
    made_of = revision(root)
    return {**files, REVISION_FILE: f"{made_of}\n".encode()} if made_of else files


def own_packages(places: Iterable[str], beside: Path) -> dict[str, bytes]:
    """Read the packages of one's own models, "my_pkg.gat:Gat", as `collect_files`.

    Args:
        beside: looked in where Python's own path has no such package.

    Raises:
        UsageError: there is no such package.
    """
    files: dict[str, bytes] = {}
    for top in sorted({place.partition(":")[0].partition(".")[0] for place in places}):
        if top in PACKAGES:
            continue
        spec = importlib.util.find_spec(top)
        origins = [*(spec.submodule_search_locations or ()), spec.origin] if spec else []
        root = Path(origins[0] or "").parent if origins else beside
        paths = [root / f"{top}.py", *(root / top).rglob("*")]
        own = _read(root, paths)
        if not own:
            raise UsageError(
                f"model package '{top}': found neither on Python's path nor in {beside}; start "
                "from the folder that holds it, or set PYTHONPATH"
            )
        files |= own
    return files


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return `files` as a zip archive, not compressed: as one that takes less."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(files.items()):
            member = zipfile.ZipInfo(name, _FIXED_DATE)
            member.create_system = 3  # Unix, wherever it is built
            member.external_attr = 0o644 << 16
            archive.writestr(member, content)
    return packed.getvalue()


def _read(root: Path, paths: Iterable[Path]) -> dict[str, bytes]:
    names = sorted(path.relative_to(root) for path in paths if path.suffix in _SUFFIXES)
    return {
        name.as_posix(): (root / name).read_bytes()
        for name in names
        if not _LEFT_OUT_FOLDERS & {parent.as_posix() for parent in name.parents}
        and not any(part.startswith(".") or part in _LEFT_OUT_NAMES for part in name.parts)
        and (root / name).is_file()
        and (root / name).resolve() == root.resolve() / name
    }
