"""Files that are either whole or absent: written under a temporary name, then renamed."""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.errors import PipelineError

TEMPORARY = ".*.tmp"  # what a killed process may leave
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")  # in the errors of libraries written in Rust
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the block succeeds.

    The temporary file lives in the same folder, so that the rename never crosses file systems,
    and is removed when the block raises. Parent folders are made.

    Raises:
        PipelineError: the folder cannot be written, or the disk is full.
    """
    with _temporary_beside(path) as temporary:
        yield temporary
        _as_any_new_file(temporary)
        temporary.replace(path)


@contextmanager
def _temporary_beside(path: Path) -> Iterator[Path]:
    """Yield a new file in the folder of `path`, that is gone after the block.

    It is named before it is made, so that there is no moment at which an interrupt could leave it.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.open("xb").close()
        yield temporary
    except OSError as error:
        raise PipelineError(f"{path}: cannot be written: {error.strerror or error}") from error
    except Exception as error:  # safetensors and polars raise errors of their own for a full disk
        found = _SYSTEM_ERROR.search(str(error))
        if found is None:
            raise
        reason = os.strerror(int(found[1]))
        raise PipelineError(f"{path}: cannot be written: {reason}") from error
    finally:
        with suppress(OSError):  # renamed, or never made, where an unlink may fail in many ways
            temporary.unlink()


def _as_any_new_file(path: Path) -> None:
    """Give a temporary file the permissions that a new file has."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8 with Unix line ends, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def create_text(path: Path, text: str) -> bool:
    """Write `text` to a new file, whole or not at all; tell whether it was not there.

    Of several processes that do so at once, one succeeds.

    Raises:
        PipelineError: as `atomic_path`.
    """
    with _temporary_beside(path) as temporary:
        temporary.write_bytes(text.encode())
        _as_any_new_file(temporary)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except FileNotFoundError:  # the one that has begun sweeps up, see `sweep`
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            temporary.replace(path)
    return True


def sweep(folder: Path, pattern: str = TEMPORARY) -> None:
    """Remove the temporary files, and folders, that a killed process left in a folder.

    Args:
        folder: nobody else writes there now.
        pattern: of their paths below it.
    """
    for left in list(folder.glob(pattern)):
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)
