"""Parse a module with jaxlib, in a child process.

jaxlib is optional, and its parsers are private. A release without one of them is refused, and a
release that was not tested gives a note.
"""

import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

from common.errors import PipelineError
from common.progress import log
from common.settings import how_to_install
from data.hlo import jaxlib_parser
from data.hlo.files import FIXED_SHAPES, HOW_TO_DUMP
from data.hlo.formats import ModuleText
from data.hlo.jaxlib_parser import EXPORT, REFUSED, private

TESTED_JAXLIB = "0.10.2 to 0.12"
FIRST_TESTED, FIRST_UNTESTED = (0, 10, 2), (0, 13)
HOW_TO_INSTALL = how_to_install("collect")
MAX_PARSE_S = 300.0
log_once = cache(log.info)


def parse_module(module: ModuleText, source: str) -> bytes:
    """Parse a module with jaxlib in a child process."""
    return convert(module.for_parser(), module.form, source)


def convert(content: bytes, form: str, source: str) -> bytes:
    """Convert a program to the binary HloModuleProto, or bytecode to text, in a child process."""
    version = check_jaxlib(f"{source}: is {form}")
    command = [sys.executable, "-P", jaxlib_parser.__file__, form]
    reason = f"not done after {MAX_PARSE_S:g} s"
    with suppress(subprocess.TimeoutExpired):
        child = subprocess.run(  # noqa: S603
            command, input=content, capture_output=True, timeout=MAX_PARSE_S, check=False
        )
        if child.returncode == 0:
            return child.stdout
        reason = f"the parser crashed ({child.returncode})"
        if child.returncode == REFUSED:
            reason = child.stdout.decode(errors="replace")
    if reason.startswith("no function"):
        raise _without(f"{source}: is {form}", f"jaxlib {version}: {reason}")
    fault = f"jaxlib {version} cannot parse it as {form}: {reason}"
    advice = FIXED_SHAPES if form == EXPORT or "dynamic" in reason else HOW_TO_DUMP
    raise PipelineError(f"{source}: {fault}; expected a valid module; {advice}")


def check_jaxlib(program: str) -> str:
    """Return the release of jaxlib. A release that was not tested gives one note."""
    try:
        version = metadata.version("jaxlib")
    except metadata.PackageNotFoundError as error:
        raise _without(program, "jaxlib is not installed") from error
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    if not FIRST_TESTED <= numbers < FIRST_UNTESTED:
        log_once(f"note: jaxlib {version} was not tested with this project; {TESTED_JAXLIB} was")
    return version


def jaxlib_function(name: str, program: str) -> Any:
    """Return a private name of jaxlib, which a program needs."""
    try:
        return private(name)
    except ImportError as error:
        raise _without(program, f"jaxlib {check_jaxlib(program)}: {error}") from error


def _without(program: str, fault: str) -> PipelineError:
    return PipelineError(f"{program}: {fault}; expected jaxlib {TESTED_JAXLIB}; {HOW_TO_INSTALL}")
