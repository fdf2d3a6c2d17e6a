"""The process that compiles and runs: some compiler flags abort it, some configs hang it.

It serves requests on a socket until that is closed: open a subject, spell choices as configs,
visit one choice.
"""

import ctypes
import gc
import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import PipelineError, UsageError
from data.collect.measuring.timing import (
    CPU,
    WALL,
    Clock,
    Visit,
    clock_for,
    host_stops,
    time_visit,
)

DEVICES = ("cpu", "gpu", "tpu")
MAX_PROGRAMS = 1024  # compiled programs that are kept; each takes one to a few MB
MAX_REASON = 400
PR_SET_PDEATHSIG = 1  # of Linux's prctl


@dataclass(frozen=True)
class Description:
    """What the search and the file need to know of a subject; g genes per choice.

    Attributes:
        n_options: (g,) int64, how many options each gene has; option 0 is the compiler's own.
        groups: (g,) int64, genes that may be drawn alike share a number.
        arrays: the arrays of the npz file that no config changes.
        facts: what the manifest says of it: platform, device, versions.
        spaces: how many genes each space of decisions has, where there are several, in order.
        nodes: (g,) int64, the node that each gene decides for, -1 for the whole program; None
            where nobody says.
        usual: (g,) int64, the choice that names all usual layouts and leaves the rest; None where
            there are no layouts.
    """

    n_options: NDArray[np.int64]
    groups: NDArray[np.int64]
    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, str]
    spaces: Mapping[str, int] = field(default_factory=dict)
    nodes: NDArray[np.int64] | None = None
    usual: NDArray[np.int64] | None = None


class Told(NamedTuple):
    """What a choice decides, in words for JSON, and the HLO module that it takes, if it does."""

    decisions: Mapping[str, Any]
    module: bytes | None = None


class Subject(Protocol):
    """Something that runs at different speeds for different choices; choices are (g,) int64."""

    def describe(self) -> Description:
        """Return what does not depend on a choice."""

    def spell(self, choices: NDArray[np.int64]) -> NDArray[Any]:
        """Return choices (c, g) as the file's config features (c, …)."""

    def load(self, choice: NDArray[np.int64]) -> Callable[[], object]:
        """Compile for a choice (g,); calling the result runs once and waits for the end.

        Raises:
            Exception: the compiler refuses; the first line of the message is kept.
        """

    def tell(self, choice: NDArray[np.int64]) -> Told:
        """Say what a choice (g,) decides."""


# Makes the subject, in the worker; picklable. Raises PipelineError: no such program or device.
OpenSubject = Callable[[], Subject]


class _Server:
    """The open subject and its compiled programs."""

    clock: Clock
    load: Callable[[bytes], Callable[[], object]]

    def open(self, asked: tuple[OpenSubject, bool]) -> Description:
        open_subject, on_all_cores = asked
        subject = open_subject()
        self.spell, self.tell = subject.spell, subject.tell
        self.load = lru_cache(MAX_PROGRAMS)(lambda key: subject.load(np.frombuffer(key, np.int64)))
        description = subject.describe()
        self.clock = WALL if on_all_cores else clock_for(description.facts["platform"])
        return description

    def visit(self, choice: NDArray[np.int64]) -> Visit:
        run = self.load(choice.tobytes())
        return time_visit(run, self.clock, stops=host_stops() if self.clock is CPU else None)


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
        except Exception as error:  # compilers and users' programs raise anything
            known = isinstance(error, PipelineError)
            told = one_line(error if known else f"{type(error).__name__}: {error}")
            connection.send((None, UsageError(told) if isinstance(error, UsageError) else told))


def one_line(said: object) -> str:
    """Return a text, or what an error says, without line breaks, shortened to 400 characters."""
    return shorten(str(said), MAX_REASON, placeholder="…") or type(said).__name__


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
        raise PipelineError(
            f"jax cannot be imported ({error}); pip install -r requirements-collect.txt"
        ) from error
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
    }


def _cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    text = information.read_text() if information.is_file() else ""
    names = re.findall(r"^model name\s*: (.*)$", text, re.M)
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores"


def main() -> None:
    """Serve on the socket whose number is the first argument, on the core that is the second.

    The process ends with its parent, and is pinned before jax is imported, which counts its cores
    once. Ctrl-C is the parent's to handle: here it would look as if a config had crashed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if len(sys.argv) > 2 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[2])})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    serve(Connection(int(sys.argv[1])))
