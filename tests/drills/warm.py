"""Processes that are forked from one which has imported all: a drill's kills cost no imports.

The process that is forked runs the very command, in a session of its own, and dies of SIGKILL as
any other; the one that it is forked from has imported modules and computed nothing.
"""

import os
import sys
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path

IMPORTED = (
    "pipeline.run.run",
    "lightgbm",
    "matplotlib.figure",
    "models.training.loop",
    "models.layout.cross_config_sage",
    "models.layout.task",
    "models.tile.late_fusion_sage",
    "models.tile.task",
    "pipeline",
)


@cache
def _server() -> ForkServerContext:
    context = get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    return context


def _call(words: list[str], changes: dict[str, str], output: str, errors: str) -> None:
    os.setsid()
    os.environ.update(changes)
    for path, stream in ((output, sys.stdout), (errors, sys.stderr)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, stream.fileno())
    forkserver._forkserver.__init__()  # type: ignore[misc]  # its workers are its own, not ours
    from pipeline.__main__ import app

    app(words, prog_name="python -m pipeline")


class WarmProcess:
    """What `subprocess.Popen` is, as far as the drills use it."""

    def __init__(
        self, words: list[str], changes: dict[str, str], output: Path, errors: Path
    ) -> None:
        self._process = _server().Process(
            target=_call, args=(words, changes, str(output), str(errors))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode
