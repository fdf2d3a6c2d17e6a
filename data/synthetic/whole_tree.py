"""A folder tree that is written whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import PipelineError, UsageError


@contextmanager
def whole_tree(out: Path) -> Iterator[Path]:
    """Yield a new folder beside `out`; it becomes `out` if the block succeeds, else it is removed.

    Raises:
        UsageError: `out` exists and is not an empty folder.
        PipelineError: the tree cannot be written: no permission, no space.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: exists and is not an empty folder; give another one")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    except OSError as error:
        raise PipelineError(f"{out}: cannot be written: {error.strerror or error}") from error
    try:
        yield unfinished
        mask = os.umask(0)
        os.umask(mask)
        unfinished.chmod(0o777 & ~mask)
        unfinished.replace(out)
    except OSError as error:
        raise PipelineError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
