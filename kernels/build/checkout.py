"""What git says of a project: which files are its own, changed or not, and which are not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import PipelineError
from common.git import git, has_checkout

_NOTHING = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # git's name of a tree without files


@dataclass(frozen=True)
class Checkout:
    """The state of a git checkout; names are below its root, "/" apart, sorted.

    Attributes:
        tracked: what is committed, or about to be.
        changed: files that differ from the last commit, and are there.
        deleted: files of the last commit that are not there any more.
        untracked: files that git neither knows nor ignores.
    """

    tracked: Sequence[str]
    changed: Sequence[str]
    deleted: Sequence[str]
    untracked: Sequence[str]


def checkout_of(root: Path, entry: str) -> Checkout | None:
    """Ask git about the project at `root`; None if it is no checkout.

    Args:
        root: the project's folder.
        entry: a file that each checkout of the project has: a project that was unpacked within
            somebody else's checkout is none.

    Raises:
        PipelineError: `root` holds .git, and git does not take it for a checkout, or fails: what
            is the project's own cannot be told from what is not.
    """
    if has_checkout(root):
        if git(root, "rev-parse", "--show-prefix").strip():
            raise PipelineError(f"{root / '.git'}: is no git repository; mend it, or remove it")
        state = _state(root)
        if entry not in state.tracked:
            raise PipelineError(f"{root / entry}: git does not track it; add the project to git")
        return state
    try:
        state = _state(root)
    except PipelineError:
        return None
    return state if entry in state.tracked else None


def _state(root: Path) -> Checkout:
    last = "HEAD" if _has_commit(root) else _NOTHING
    differing = ("diff", "--name-only", "--no-renames", "--relative", "-z")
    return Checkout(
        tracked=_names(root, "ls-files", "-z"),
        changed=_names(root, *differing, "--diff-filter=d", last),
        deleted=_names(root, *differing, "--diff-filter=D", last),
        untracked=_names(root, "ls-files", "--others", "--exclude-standard", "-z"),
    )


def _has_commit(root: Path) -> bool:
    try:
        return bool(git(root, "rev-parse", "--quiet", "--verify", "HEAD"))
    except PipelineError:
        return False


def _names(root: Path, *arguments: str) -> list[str]:
    """Return the sorted names that git lists; one in conflict is listed several times."""
    return sorted({name for name in git(root, *arguments).split("\0") if name})
