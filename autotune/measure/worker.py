"""The process that compiles and runs, and how it is asked: it is started again where it ends.

Some compiler flags abort it, some configs hang it. It serves requests on a socket until that is
closed: open a subject, spell settings as configs, visit one setting.
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
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.measure.timing import (
    CPU,
    WALL,
    Clock,
    Visit,
    clock_for,
    host_stops,
    time_visit,
)
from common.errors import PipelineError, UsageError
from common.progress import log, seconds_left
from common.settings import ROOT

DEVICES = ("cpu", "gpu", "tpu")
HOW_TO_INSTALL = (
    f"`make setup-collect` installs it into {ROOT / '.venv'}; into another environment, "
    f"pip install -r {ROOT / 'requirements-collect.txt'}"
)
MAX_PROGRAMS = 1024  # compiled programs that are kept; each takes one to a few MB
MAX_REASON = 400
NOT_DONE = "not done after"
_FRAMES = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+")  # its end says what
PR_SET_PDEATHSIG = 1  # of Linux's prctl
OPEN_TIMEOUT_S, MIN_OPEN_S = 600.0, 60.0  # at most, and where less time is left
KILL_WAIT_S = 10.0
LOAD_SAMPLE_S = 0.2
PROC_STAT = Path("/proc/stat")
log_once = cache(log.info)  # workers start often


@dataclass(frozen=True)
class Description:
    """What the search and the file need to know of a subject; g knobs per setting."""

    n_options: NDArray[np.int64]  # (g,) how many each knob has; option 0 is the compiler's own
    groups: NDArray[np.int64]  # (g,) knobs that may be drawn alike share a number
    arrays: Mapping[str, NDArray[Any]]  # of the npz file, that no config changes
    facts: Mapping[str, str]  # the function's digest, and for the manifest device and versions
    # How many knobs each space of decisions has, where there are several, in order.
    spaces: Mapping[str, int] = field(default_factory=dict)
    nodes: NDArray[np.int64] | None = None  # (g,) each knob's node, -1 for the whole program
    usual: NDArray[np.int64] | None = None  # (g,) all usual layouts named; None without layouts
    names: tuple[str, ...] = ()  # of the n instructions; none of a kernel's


class Decisions(NamedTuple):
    """What a setting decides, in words for JSON, and the HLO module that it takes, if it does."""

    decisions: Mapping[str, Any]
    module: bytes | None = None


class Loaded(NamedTuple):
    """A compiled setting: running it once, to the end; and what tells its code from others'."""

    run: Callable[[], object]
    code: str


class MeasurableProgram(Protocol):
    """Something that runs at different speeds for different settings; settings are (g,) int64."""

    def describe(self) -> Description:
        """Return what does not depend on a setting."""

    def spell(self, settings: NDArray[np.int64]) -> NDArray[Any]:
        """Return settings (c, g) as the file's config features (c, …)."""

    def load(self, setting: NDArray[np.int64]) -> Loaded:
        """Compile for a setting (g,).

        Raises:
            Exception: the compiler refuses; the first line of the message is kept.
        """

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        """Say what a setting (g,) decides."""


# Makes the subject, in the worker; picklable. Raises PipelineError: no such program or device.
OpenProgram = Callable[[], MeasurableProgram]


class _Server:
    """The open subject and its compiled programs."""

    clock: Clock
    on_all_cores: bool
    load: Callable[[bytes], Loaded]

    def open(self, asked: tuple[OpenProgram, bool]) -> Description:
        open_measurable, self.on_all_cores = asked
        subject = open_measurable()
        self.spell, self.describe_setting = subject.spell, subject.describe_setting
        self.load = lru_cache(MAX_PROGRAMS)(lambda key: subject.load(np.frombuffer(key, np.int64)))
        description = subject.describe()
        self.clock = WALL if self.on_all_cores else clock_for(description.facts["platform"])
        return description

    def visit(self, setting: NDArray[np.int64]) -> Visit:
        run, code = self.load(setting.tobytes())
        stops = host_stops() if self.clock is CPU else None
        visit = time_visit(run, self.clock, stops=stops, is_median=self.on_all_cores)
        return visit._replace(code=code)

    def code(self, setting: NDArray[np.int64]) -> str:
        return self.load(setting.tobytes()).code


def serve(connection: Connection) -> None:
    """Answer requests (what, argument) by (value, problem) until the other side closes."""
    server = _Server()
    gc.disable()  # a collection in the middle of a run would be timed with it
    while True:
        try:
            what, argument = connection.recv()
        except (EOFError, OSError):
            return
        try:
            connection.send((getattr(server, what)(argument), ""))
        except (Exception, SystemExit) as error:  # compilers and users' programs raise anything
            reason = one_line(error) if isinstance(error, PipelineError) else error_line(error)
            connection.send((None, UsageError(reason) if isinstance(error, UsageError) else reason))


def one_line(said: object) -> str:
    """Return a text, or what an error says, without line breaks and the frames of tracebacks.

    It is shortened to 400 characters.
    """
    text = _FRAMES.sub("", str(said))
    return shorten(text, MAX_REASON, placeholder="…") or type(said).__name__


def error_line(error: BaseException) -> str:
    """Return what `one_line` does, after the type of the error."""
    return one_line(f"{type(error).__name__}: {error}")


def open_device(device: str | None) -> dict[str, str]:
    """Make JAX use `device`, or what it chooses itself for None; return facts for the manifest.

    To be called before anything else imports jax.

    Raises:
        PipelineError: jax is not installed, or finds no such device here.
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
    # Of the machine: a worker that is pinned may use one core only.
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    """Serve on the socket whose number is the first argument, on the core that is the second.

    The process ends with its parent, and is pinned before jax is imported, which counts its cores
    once. Ctrl-C is the parent's to handle: here it would look as if a config had crashed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if len(sys.argv) > 2:
        os.sched_setaffinity(0, {int(sys.argv[2])})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    serve(Connection(int(sys.argv[1])))


class ProgramFailed(PipelineError):  # noqa: N818 (what happened, said in the past tense)
    """A program cannot be measured at all; others may be."""


class ConfigFailed(Exception):  # noqa: N818 (what happened, said in the past tense)
    """One config was refused, crashed the process or hung; the message is one line."""


class Session(AbstractContextManager["Session"]):
    """A worker process with one open subject; use it as a context manager.

    After a crash or a hang the next request starts a fresh process and opens the subject again.
    It keeps to the core that is idlest as it starts.

    Args:
        what: is opened, as the line says where it ends the process.
        on_all_cores: times the median run on as many threads as JAX likes, by the wall clock.
    """

    def __init__(
        self,
        open_measurable: OpenProgram,
        *,
        timeout_s: float,
        what: str = "the program",
        on_all_cores: bool = False,
    ) -> None:
        self._open_measurable, self._on_all_cores = open_measurable, on_all_cores
        self._what, self._timeout_s = what, timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        self.stop()

    def describe(self, *, timeout_s: float = OPEN_TIMEOUT_S) -> Description:
        """Open the subject, within 600 s or less, and return what does not depend on a setting.

        Raises:
            UsageError: nothing that was asked for can be decided.
            ProgramFailed: it cannot be opened; the line says why.
        """
        self.stop()
        self._start()
        description: Description = self._ask(
            "open", (self._open_measurable, self._on_all_cores), timeout_s, ProgramFailed
        )
        return description

    def spell(self, settings: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self._ask("spell", settings, OPEN_TIMEOUT_S, ProgramFailed))

    def describe_setting(self, setting: NDArray[np.int64]) -> Decisions:
        """Say what a setting (g,) decides; raises ProgramFailed: the subject cannot be opened."""
        decisions: Decisions = self._ask("describe_setting", setting, OPEN_TIMEOUT_S, ProgramFailed)
        return decisions

    def code(self, setting: NDArray[np.int64]) -> str:
        """Compile one setting (g,); return what tells its code from others; raises as `visit`."""
        return str(self._ask("code", setting, self._timeout_s, ConfigFailed))

    def visit(self, setting: NDArray[np.int64]) -> Visit:
        """Compile and time one setting (g,).

        Raises:
            ConfigFailed: refused, crashed, or not done after the time limit.
            ProgramFailed: the subject cannot be opened again.
        """
        visit: Visit = self._ask("visit", setting, self._timeout_s, ConfigFailed)
        return visit

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        core = None if self._on_all_cores else idlest_core()
        # Not `-m`: classes of a module that runs as __main__ cannot be sent back.
        start = "from autotune.measure.worker import main; main()"
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
                self.stop()
                reason = f"{NOT_DONE} {timeout_s:.3g} s"
                expected = f"{self._what}: {reason}; expected to trace and compile it by then"
                raise failure(expected if failure is ProgramFailed else reason)
            value, problem = self._connection.recv()
        except (EOFError, OSError):
            value, problem = None, self._crash()
            if failure is ProgramFailed:
                problem = f"{self._what}: {problem}; expected a program that returns"
        if problem:
            raise problem if isinstance(problem, UsageError) else failure(problem)
        return value

    def _crash(self) -> str:
        assert self._process is not None, "only a started process crashes"
        code = self._process.wait(KILL_WAIT_S)
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        self.stop()
        return one_line(
            f"the process ended with {code}: {lines[-1] if lines else 'it said nothing'}"
        )

    def stop(self) -> None:
        """End the process; the next request starts another."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait(KILL_WAIT_S)
            self._said.close()
            self._process = None


def opening_s() -> float:
    """Return how long a first opening may take: 600 s, or what is left, but 60 s at least."""
    return min(OPEN_TIMEOUT_S, max(MIN_OPEN_S, seconds_left()))


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
    """Return the core that has been idle most in the last 0.2 s; None if nothing can be pinned."""
    try:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # changes nothing; a sandbox may forbid it
    except (AttributeError, OSError):  # AttributeError: only Linux has these functions
        log_once("note: this system cannot pin a process to one core; expect noisier runtimes")
        return None
    before = _idle_ticks()
    time.sleep(LOAD_SAMPLE_S if before else 0.0)
    after = _idle_ticks()
    return max(sorted(cores), key=lambda core: after.get(core, 0) - before.get(core, 0))


def _idle_ticks() -> dict[int, int]:
    """Return the idle time of each core; nothing if the system hides it."""
    text = ""
    with suppress(OSError):
        text = PROC_STAT.read_text()
    rows = re.findall(r"^cpu(\d+) \d+ \d+ \d+ (\d+)", text, re.M)
    return {int(core): int(ticks) for core, ticks in rows}
