"""The measuring process as seen from outside: it may crash or hang, and is started again."""

import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.collect.measuring.timing import Visit
from data.collect.measuring.worker import Description, OpenSubject, Told, one_line

OPEN_TIMEOUT_S = 600.0
KILL_WAIT_S = 10.0
LOAD_SAMPLE_S = 0.2


class ProgramFailed(PipelineError):  # noqa: N818 (what happened, said in the past tense)
    """A program cannot be measured at all; others may be."""


class ConfigFailed(Exception):  # noqa: N818 (what happened, said in the past tense)
    """One config was refused, crashed the process or hung; the message is one line."""


class Session(AbstractContextManager["Session"]):
    """A worker process with one open subject; use it as a context manager.

    After a crash or a hang the next request starts a fresh process and opens the subject again.
    It keeps to the core that is idlest as it starts.

    Args:
        on_all_cores: times what runs on as many threads as JAX likes, by the wall clock.
    """

    def __init__(
        self, open_subject: OpenSubject, *, timeout_s: float, on_all_cores: bool = False
    ) -> None:
        self._open_subject, self._on_all_cores = open_subject, on_all_cores
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self._stop()

    def describe(self) -> Description:
        """Open the subject and return what does not depend on a choice.

        Raises:
            UsageError: nothing that was asked for can be decided.
            ProgramFailed: it cannot be opened; the line says why.
        """
        self._stop()
        self._start()
        description: Description = self._ask(
            "open", (self._open_subject, self._on_all_cores), OPEN_TIMEOUT_S, ProgramFailed
        )
        return description

    def spell(self, choices: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self._ask("spell", choices, OPEN_TIMEOUT_S, ProgramFailed))

    def tell(self, choice: NDArray[np.int64]) -> Told:
        """Say what a choice (g,) decides; raises ProgramFailed: the subject cannot be opened."""
        told: Told = self._ask("tell", choice, OPEN_TIMEOUT_S, ProgramFailed)
        return told

    def visit(self, choice: NDArray[np.int64]) -> Visit:
        """Compile and time one choice (g,).

        Raises:
            ConfigFailed: refused, crashed, or not done after the time limit.
            ProgramFailed: the subject cannot be opened again.
        """
        visit: Visit = self._ask("visit", choice, self._timeout_s, ConfigFailed)
        return visit

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in _stop)
        core = None if self._on_all_cores else idlest_core()
        # Not `-m`: classes of a module that runs as __main__ cannot be sent back.
        start = "from data.collect.measuring.worker import main; main()"
        command = [sys.executable, "-c", start, str(theirs.fileno())]
        self._process = subprocess.Popen(  # noqa: S603
            command if core is None else [*command, str(core)],
            pass_fds=(theirs.fileno(),),
            env=_worker_environment(on_all_cores=self._on_all_cores),
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
        )
        theirs.close()

    def _ask(self, what: str, argument: Any, timeout_s: float, failure: type[Exception]) -> Any:
        if self._process is None:
            self.describe()
        try:
            self._connection.send((what, argument))
            if not self._connection.poll(timeout_s):
                self._stop()
                raise failure(f"not done after {timeout_s:g} s")
            value, problem = self._connection.recv()
        except (EOFError, OSError):
            value, problem = None, self._crash()
        if problem:
            raise problem if isinstance(problem, UsageError) else failure(problem)
        return value

    def _crash(self) -> str:
        assert self._process is not None, "only a started process crashes"
        code = self._process.wait(KILL_WAIT_S)
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        self._stop()
        return one_line(f"the process ended with {code}: {lines[-1] if lines else 'no word'}")

    def _stop(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait(KILL_WAIT_S)
            self._said.close()
            self._process = None


def _worker_environment(*, on_all_cores: bool) -> dict[str, str]:
    found = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if on_all_cores:
        return found
    one_thread = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {one_thread}".strip()
    return {**found, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}


def idlest_core() -> int | None:
    """Return the core, of those that we may use, that has been idle most in the last 0.2 s.

    None where the system does not tell (it is no Linux).
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    before = _idle_ticks()
    time.sleep(LOAD_SAMPLE_S)
    after = _idle_ticks()
    return max(sorted(os.sched_getaffinity(0)), key=lambda core: after[core] - before[core])


def _idle_ticks() -> dict[int, int]:
    rows = re.findall(r"^cpu(\d+) \d+ \d+ \d+ (\d+)", Path("/proc/stat").read_text(), re.M)
    return {int(core): int(ticks) for core, ticks in rows}
