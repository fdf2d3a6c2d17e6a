"""Temporary folders in one place that only this user can read; what killed calls left is cleared.

The client notes signed addresses of uploads in files. A folder is in use while its lock is held,
which ends with the process that holds it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import PipelineError
from common.locks import locked

_IN_USE = "in-use.lock"
_CONTENT = "content"
FIXED_TEMPORARY = Path("/tmp")  # noqa: S108 - whatever TMPDIR says; only folders of mode 700 in it


def private_place(common: Path | None = None) -> Path:
    """Return this user's own folder, mode 700, within the common temporary one.

    Args:
        common: by default what TMPDIR names.

    Raises:
        PipelineError: something else has its name, or it cannot be made.
    """
    place = (common or Path(tempfile.gettempdir())) / f"fast-or-slow-{os.getuid()}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PipelineError(f"{place}: expected a folder of this user's own; remove it")
        place.chmod(0o700)
    except OSError as error:
        raise PipelineError(f"{place}: cannot be used: {error.strerror or error}") from error
    return place


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Yield a new folder, which is removed afterwards; what is written meanwhile is mode 600.

    It lies in `private_place`.

    Args:
        purpose: the start of its name.

    Raises:
        PipelineError: it cannot be made.
    """
    place = private_place()
    mask = os.umask(0o077)
    try:
        with locked(place / ".clearing.lock"):
            _clear_dead(place)
            folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=place))
            in_use = (folder / _IN_USE).open("x")
            fcntl.flock(in_use, fcntl.LOCK_EX)
        try:
            (folder / _CONTENT).mkdir()
            yield folder / _CONTENT
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            in_use.close()
    finally:
        os.umask(mask)


def _clear_dead(place: Path) -> None:
    """Remove the folders of processes that have ended."""
    for lock in place.glob(f"*/{_IN_USE}"):
        if lock.parent.is_symlink():
            continue  # not made here
        try:
            held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(held)
