"""The worker process that compiles and times a program, and the session that restarts it.

Some compiler flags abort the worker, and some configs hang it. The worker serves requests on a
socket until the socket is closed: open a program, encode settings as configs, visit one setting.
"""

import ctypes
import gc
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.measure.program import Decisions, Description, Loaded, OpenProgram
from autotune.measure.timing import (
    VISIT_BUDGET_NS,
    WALL,
    Clock,
    Visit,
    clock_for,
    time_visit,
)
from common.errors import OutOfTime, PipelineError, UsageError
from common.progress import seconds_left
from data.hlo.choices import Choices
from data.hlo.parse import HOW_TO_INSTALL

DEVICES = ("cpu", "gpu", "tpu")
# Linux allows a process this number of memory regions. XLA maps one for about eight instructions,
# and an instruction takes about 13 KB.
MAX_REGIONS = Path("/proc/sys/vm/max_map_count")
INSTRUCTIONS_PER_REGION = 5
MAX_REASON = 400
NOT_DONE = "not done after"
_FRAMES = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+")
# glibc gives large buffers back to the kernel, so a run may have to fault thousands of pages in. It
# depends on what was compiled before. With these settings glibc keeps them.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}
# An option of prctl on Linux: the kernel kills the worker when its parent ends.
PR_SET_PDEATHSIG = 1
# Opening a program may take 600 s, but no answer may come later than 2 s after the time limit.
OPEN_TIMEOUT_S, GRACE_S = 600.0, 2.0
KILL_WAIT_S = 10.0


class _Server:
    clock: Clock
    on_all_cores: bool
    load: Callable[[bytes], Loaded]

    def open(self, request: tuple[OpenProgram, bool]) -> Description:
        open_measurable, self.on_all_cores = request
        program = open_measurable()
        self.spell, self.describe_setting = program.spell, program.describe_setting
        description = program.describe()
        n_regions = int(MAX_REGIONS.read_text()) if MAX_REGIONS.exists() else 65_530
        n_instructions = INSTRUCTIONS_PER_REGION * n_regions
        n_programs = max(1, n_instructions // len(description.arrays["node_opcode"]))

        def load(key: bytes) -> Loaded:
            loaded = program.load(np.frombuffer(key, np.int64))
            # Modules and traces of the compilation refer to each other in circles.
            gc.collect()
            return loaded

        self.load = lru_cache(n_programs)(load)
        self.clock = WALL if self.on_all_cores else clock_for(description.facts["platform"])
        return description

    def visit(self, setting: Choices) -> Visit:
        run, code = self.load(setting.tobytes())
        is_median = self.on_all_cores
        visit = time_visit(run, self.clock, budget_ns=VISIT_BUDGET_NS, is_median=is_median)
        return visit._replace(code=code)

    def code(self, setting: Choices) -> str:
        return self.load(setting.tobytes()).code


def serve(connection: Connection) -> None:
    """Answer requests (method, argument) by (value, problem) until the other side closes."""
    server = _Server()
    # A garbage collection in the middle of a run would be part of its time.
    gc.disable()
    while True:
        try:
            method, argument = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send((getattr(server, method)(argument), ""))
        # Compilers and users' programs may raise anything.
        except (Exception, SystemExit) as error:
            reason = one_line(error) if isinstance(error, PipelineError) else error_line(error)
            connection.send((None, UsageError(reason) if isinstance(error, UsageError) else reason))


def one_line(message: object) -> str:
    """Return a message in one line of at most 400 characters, without frames of tracebacks."""
    text = _FRAMES.sub("", str(message))
    return shorten(text, MAX_REASON, placeholder="…") or type(message).__name__


def error_line(error: BaseException) -> str:
    """Return the type and message of an error in one line."""
    return one_line(f"{type(error).__name__}: {error}")


def open_device(device: str | None) -> dict[str, str]:
    """Make JAX use a device. Call this before anything else imports jax.

    Args:
        device: "cpu", "gpu" or "tpu". None lets JAX choose.
    """
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        import jax
        import jaxlib
    except ImportError as error:
        raise PipelineError(f"jax cannot be imported ({error}); {HOW_TO_INSTALL}") from error
    try:
        first = jax.devices()[0]
    except (RuntimeError, AssertionError) as error:
        raise PipelineError(f"jax finds no device to measure on: {error}") from error
    if device is not None and first.platform != device:
        raise PipelineError(
            f"--device {device}: jax finds none here, only {first.platform} ({first.device_kind}); "
            "expected the device and the jaxlib that drives it"
        )
    return {
        "platform": first.platform,
        "device": first.device_kind,
        "cpu": _cpu_model(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": sys.platform,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _cpu_model() -> str:
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        name = names[0] if names else name
    # The number is of the machine, because a pinned worker may use one core only.
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    """Serve requests. The arguments are the number of a socket, and "one" or "all" cores.

    The parent handles Ctrl-C: in the worker it would look like a crash of the config.
    """
    socket, cores = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        system = ctypes.CDLL(None)
        system.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The kernel starts a process on an idle core. It stays there, and jax counts one core. A
        # sandbox may forbid this.
        with suppress(OSError, ValueError):
            if cores == "one":
                os.sched_setaffinity(0, {system.sched_getcpu()})
    serve(Connection(int(socket)))


class ProgramFailed(PipelineError):  # noqa: N818
    """A program cannot be measured at all. Other programs may be measured."""


class ConfigFailed(Exception):  # noqa: N818
    """One config was rejected, crashed the process or hung. The message is one line."""


class Session(AbstractContextManager["Session"]):
    """A worker process with one open program. Use it as a context manager.

    After a crash or a hang the next request starts a fresh process and opens the program again.
    On Linux, the process stays on the core on which it started. A request that is not done at the
    end of the time limit, as it was when the session began, raises OutOfTime.

    Args:
        open_measurable: Function that opens the program in the worker. It must be picklable.
        on_all_cores: Whether the worker uses all cores, and returns the median wall time of a
            visit. Otherwise it uses one core, and returns the shortest time.
        flags: More flags of XLA_FLAGS for the worker.
    """

    def __init__(
        self,
        open_measurable: OpenProgram,
        *,
        timeout_s: float,
        label: str = "the program",
        on_all_cores: bool = False,
        flags: str = "",
    ) -> None:
        self._open_measurable, self._on_all_cores = open_measurable, on_all_cores
        self._flags = flags
        self._label, self._timeout_s = label, timeout_s
        self._end_s = time.monotonic() + seconds_left()
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self.stop()

    def describe(self) -> Description:
        """Open the program and return the parts that do not depend on a setting."""
        self.stop()
        self._start()
        request = (self._open_measurable, self._on_all_cores)
        description: Description = self._ask("open", request, OPEN_TIMEOUT_S, ProgramFailed)
        return description

    def spell(self, settings: Choices) -> NDArray[Any]:
        """Return config features of settings (c, g) as the npz file has them, (c, …)."""
        return np.asarray(self._ask("spell", settings, OPEN_TIMEOUT_S, ProgramFailed))

    def describe_setting(self, setting: Choices) -> Decisions:
        """Return the decisions of one setting (g,)."""
        decisions: Decisions = self._ask("describe_setting", setting, OPEN_TIMEOUT_S, ProgramFailed)
        return decisions

    def code(self, setting: Choices) -> str:
        """Compile one setting (g,) and return the digest of its machine code."""
        return str(self._ask("code", setting, self._timeout_s, ConfigFailed))

    def visit(self, setting: Choices) -> Visit:
        """Compile and time one setting (g,).

        Raises:
            ConfigFailed: The setting was rejected, crashed, or reached the time limit.
        """
        visit: Visit = self._ask("visit", setting, self._timeout_s, ConfigFailed)
        return visit

    def _start(self) -> None:
        self._connection, worker_end = Pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        cores = "all" if self._on_all_cores else "one"
        # With `-m` the classes would be of the module __main__, and could not be sent back.
        start = "from autotune.measure.worker import main; main()"
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", start, str(worker_end.fileno()), cores],
            pass_fds=(worker_end.fileno(),),
            env=worker_environment(self._flags, on_all_cores=self._on_all_cores),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        worker_end.close()

    def _ask(self, method: str, argument: Any, timeout_s: float, failure: type[Exception]) -> Any:
        if self._process is None:
            if time.monotonic() > self._end_s:
                raise OutOfTime(self._label)
            self.describe()
        left_s = max(GRACE_S, self._end_s - time.monotonic())
        try:
            self._connection.send((method, argument))
            if not self._connection.poll(min(timeout_s, left_s)):
                self.stop()
                if left_s < timeout_s:
                    raise OutOfTime(self._label)
                reason = f"{NOT_DONE} {timeout_s:.3g} s"
                line = f"{self._label}: {reason}; expected to trace and compile it by then"
                raise failure(line if failure is ProgramFailed else reason)
            value, problem = self._connection.recv()
        except (EOFError, OSError):
            value, problem = None, self._crash()
            if failure is ProgramFailed:
                problem = f"{self._label}: {problem}; expected a program that returns"
        if problem:
            raise problem if isinstance(problem, UsageError) else failure(problem)
        return value

    def _crash(self) -> str:
        assert self._process is not None, "only a started process crashes"
        code = self._process.wait(KILL_WAIT_S)
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        self.stop()
        return one_line(
            f"the process ended with {code}: {lines[-1] if lines else 'it printed nothing'}"
        )

    def stop(self) -> None:
        """End the process. The next request starts a new one."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait(KILL_WAIT_S)
            self._output.close()
            self._process = None


def worker_environment(flags: str, *, on_all_cores: bool) -> dict[str, str]:
    environment = {
        **KEEP_MEMORY,
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if not on_all_cores:
        flags += " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        environment["OMP_NUM_THREADS"] = "1"
    if flags:
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return environment
