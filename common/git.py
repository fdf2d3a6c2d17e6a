"""Ask git about a project: in its own checkout, whatever a hook's environment says."""

import os
import re
import subprocess
from pathlib import Path

from common.errors import PipelineError
from common.settings import ROOT

REVISION_FILE = "REVISION"  # in a kernel's archive: what `revision` said where it was built
MAX_DIFF = 1 << 20
_LIMIT_S = 30

# Within a git hook these name another checkout.
_OF_A_HOOK = re.compile(
    r"GIT_((COMMON_|IMPLICIT_WORK_)?(DIR|TREE)|WORK_TREE|(GRAFT|INDEX|SHALLOW)_FILE|NAMESPACE|PREFIX"
    r"|OBJECT_DIRECTORY|ALTERNATE_OBJECT_DIRECTORIES)"
)


def has_checkout(root: Path) -> bool:
    """Tell whether `root` is meant to be a git checkout's top: it holds .git, of any kind."""
    return os.path.lexists(root / ".git")


def git(root: Path, *arguments: str) -> str:
    """Return what git prints; names of files that are not UTF-8 come as `os.fsdecode` gives them.

    Raises:
        PipelineError: git is missing, takes too long, or fails; in its own words.
    """
    environment = {key: os.environ[key] for key in os.environ if not _OF_A_HOOK.fullmatch(key)}
    command = ["git", "-C", str(root), *arguments]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, check=True, timeout=_LIMIT_S, env=environment
        )
    except FileNotFoundError as error:
        raise PipelineError(f"{root}: is a git checkout, but there is no git to ask") from error
    except OSError as error:
        raise PipelineError(f"{root}: git cannot be run: {error.strerror or error}") from error
    except subprocess.TimeoutExpired as error:
        raise PipelineError(f"{root}: git does not answer within {_LIMIT_S} s") from error
    except subprocess.CalledProcessError as error:
        said = " ".join(os.fsdecode(error.stderr).split()) or f"exit {error.returncode}"
        raise PipelineError(f"{root}: git {arguments[0]} fails: {said}") from error
    return os.fsdecode(done.stdout)


def changes(root: Path = ROOT) -> str | None:
    """Return in what the code differs from its revision, as a diff of at most 1 MiB; None if not.

    Files that git does not know of are not in it, as in `revision`; nor is anything in a kernel.
    """
    if not has_checkout(root):
        return None
    try:
        diff = git(root, "diff", "HEAD")
    except PipelineError:
        return None
    cut = f"\n… cut at {MAX_DIFF} characters\n" if len(diff) > MAX_DIFF else ""
    return (diff[:MAX_DIFF] + cut).encode(errors="replace").decode() or None


def revision(root: Path = ROOT) -> str | None:
    """Return the code's git revision, "+changed" if files differ from it; None if not known.

    A kernel's code lies outside git, and has a file that says what it was built from. In a checkout
    such a file says nothing.
    """
    if not has_checkout(root):
        try:
            return (root / REVISION_FILE).read_text(encoding="utf-8").strip() or None
        except (OSError, ValueError):
            pass  # no kernel
    try:
        head = git(root, "rev-parse", "--short=12", "HEAD").strip()
        return f"{head}+changed" if git(root, "status", "--porcelain", "-uno") else head
    except PipelineError:
        return None
