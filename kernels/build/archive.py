"""The project's own code as one zip archive whose bytes depend on nothing but the files.

Of a git checkout that is what git tracks, as it lies there; elsewhere, regular files of the
suffixes that the project has. Links are not followed.
"""

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path

from common.errors import PipelineError
from common.git import REVISION_FILE, revision
from common.kaggle.errors import escaped
from common.kaggle.secrets import known_secrets
from kernels.build.checkout import Checkout, checkout_of

ENTRY = "pipeline/__main__.py"
PACKAGES = (
    "common",
    "data",
    "features",
    "models",
    "ensembles",
    "submissions",
    "kernels",
    "pipeline",
    "configs",
)

# Data sets, caches and results lie beside the code but are no part of it.
_LEFT_OUT_FOLDERS = frozenset({"data/sample", "data/raw", "data/store"})
_LEFT_OUT_NAMES = frozenset({"__pycache__", "kaggle.json", "access_token"})
_LEFT_OUT_SUFFIXES = frozenset({".pyc", ".pyo", ".md", ".png"})  # no code, or made of it
_SUFFIXES = frozenset({".py", ".toml", ".csv", ".gz", ".j2", ".proto", ".html"})  # outside git
_MOST_NAMED = 5
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can hold


def collect_files(
    root: Path, *, replaced: str = "", say: Callable[[str], None] = lambda line: None
) -> dict[str, bytes]:
    """Read what a kernel needs of the project at `root`: path below root, "/" apart, to content.

    The code's revision is among it, where it is known, as the file REVISION.

    Args:
        root: the project.
        replaced: a file that the caller puts another content in place of: nothing is told of it.
        say: told which files are embedded although they were changed, which are left out, and that
            the revision is not known.

    Raises:
        PipelineError: `root` holds no pipeline/__main__.py or common/settings.py, or they are
        links; a file cannot
            be read, or its name is not UTF-8; or git fails, see `checkout_of`.
    """
    checkout = checkout_of(root, ENTRY)
    candidates = checkout.tracked if checkout else _found(root)
    names = [name for name in candidates if name != ENTRY and _belongs(Path(name))]
    linked = [name for name in names if _is_linked(root, name)]
    plain = [name for name in names if name not in linked and (root / name).is_file()]
    for name in plain:
        _refuse_undecodable(root, name)
    files = {name: _read(root / name) for name in (ENTRY, *plain)}
    _tell("left out, since they are links", linked, say)
    if checkout:
        _tell_of_changes(checkout, files, {*linked, replaced}, say)
    made_of = revision(root) if checkout or (root / REVISION_FILE).is_file() else None
    if made_of is None:
        say("the code's revision is not known: reports of the kernel will name none")
    return {**files, REVISION_FILE: f"{made_of}\n".encode()} if made_of else files


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


def _found(root: Path) -> list[str]:
    """List the files of the suffixes that the project has: what is at hand outside git."""
    paths = [path for package in PACKAGES for path in (root / package).rglob("*")]
    return sorted(
        path.relative_to(root).as_posix()
        for path in paths
        if path.suffix in _SUFFIXES and path.is_file()
    )


def _is_linked(root: Path, name: str) -> bool:
    """Tell whether a file, or a folder that it lies in below `root`, is a symbolic link."""
    relative = Path(name)
    return any((root / part).is_symlink() for part in (relative, *relative.parents[:-1]))


def _tell_of_changes(
    checkout: Checkout, files: Mapping[str, bytes], told: Set[str], say: Callable[[str], None]
) -> None:
    """Tell how the files differ from the last commit, each file once.

    Args:
        checkout: what git says.
        files: what is embedded.
        told: names that nothing more is to be told of.
        say: told so.
    """
    changed = [name for name in checkout.changed if name in files]
    untracked = [name for name in checkout.untracked if name not in files]
    for what, names in (
        ("embedded as they are, changed since the last commit", changed),
        ("left out, since they are deleted", checkout.deleted),
        ("left out, since git does not track them", untracked),
    ):
        new = [name for name in names if name not in told]
        _tell(what, [name for name in new if _belongs(Path(name))], say)
        told = {*told, *new}


def _tell(what: str, names: Sequence[str], say: Callable[[str], None]) -> None:
    if names:
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        say(f"{what}: {', '.join(map(escaped, names[:_MOST_NAMED]))}{more}")


def _belongs(relative: Path) -> bool:
    """Say whether a file belongs to the code: in a package, not hidden, no cache, no data."""
    folders = {parent.as_posix() for parent in relative.parents}
    return (
        relative.parts[0] in PACKAGES
        and len(relative.parts) > 1
        and not folders & _LEFT_OUT_FOLDERS
        and not any(part.startswith(".") or part in _LEFT_OUT_NAMES for part in relative.parts)
        and relative.suffix not in _LEFT_OUT_SUFFIXES
    )


def _refuse_undecodable(root: Path, name: str) -> None:
    """Refuse a name that is not UTF-8, which an archive cannot hold."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise PipelineError(
            f"{root}: the name of {escaped(name)} is not UTF-8; give it another one"
        ) from error


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink():
            raise PipelineError(f"{path}: is a link; expected a plain file")
        return path.read_bytes()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror}") from error
