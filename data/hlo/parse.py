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
from common.settings import IS_INSTALLED, ROOT, how_to_install
from data.hlo import jaxlib_parser
from data.hlo.files import FIXED_SHAPES, HOW_TO_DUMP
from data.hlo.formats import ModuleText
from data.hlo.jaxlib_parser import BYTECODE, EXPORT, MISSING, REFUSED, private

# The first release, and the last minor release.
TESTED_JAXLIB = ("0.10.2", "0.12")
HOW_TO_INSTALL = (
    how_to_install("jax")
    if IS_INSTALLED
    else (
        f"`make setup-collect` installs it into {ROOT / '.venv'}; into another environment, "
        f"pip install -r {ROOT / 'requirements-collect.txt'}"
    )
)
MAX_PARSE_S = 300.0


def parse_module(module: ModuleText, source: str) -> tuple[bytes, str]:
    """Return the HloModuleProto of a module, and the attributes that jaxlib does not know."""
    names, _, message = _run(source, module.form, module.for_parser()).partition(b"\n")
    if names:
        version = metadata.version("jaxlib")
        log.info(f"note: {source}: jaxlib {version} does not know {names.decode()}; left out")
    return message, names.decode()


def parse_export(content: bytes, batch: int, source: str) -> bytes:
    """Return the HloModuleProto of a `jax.export` artifact whose symbolic size is `batch`."""
    return _run(source, EXPORT, content, str(batch)).partition(b"\n")[2]


def bytecode_text(content: bytes, source: str) -> bytes:
    """Return MLIR bytecode as text."""
    return _run(source, BYTECODE, content)


def _run(source: str, form: str, content: bytes, *arguments: str) -> bytes:
    """Run a parser of jaxlib in a child process."""
    version = check_jaxlib(f"{source}: is {form}")
    command = [sys.executable, "-P", jaxlib_parser.__file__, form, *arguments]
    reason = f"not done after {MAX_PARSE_S:g} s"
    with suppress(subprocess.TimeoutExpired):
        child = subprocess.run(  # noqa: S603
            command, input=content, capture_output=True, timeout=MAX_PARSE_S, check=False
        )
        if child.returncode == 0:
            return child.stdout
        reason = f"the parser crashed ({child.returncode})"
        if child.returncode in (REFUSED, MISSING):
            reason = child.stdout.decode(errors="replace")
        if child.returncode == MISSING:
            raise _without(f"{source}: is {form}", f"jaxlib {version}: {reason}")
    fault = f"jaxlib {version} cannot parse it as {form}: {reason}"
    advice = FIXED_SHAPES if form == EXPORT or "dynamic" in reason else HOW_TO_DUMP
    raise PipelineError(f"{source}: {fault}; expected a valid module; {advice}")


def check_jaxlib(program: str) -> str:
    """Check that jaxlib is installed, and return its release."""
    try:
        version = metadata.version("jaxlib")
    except metadata.PackageNotFoundError as error:
        raise _without(program, "jaxlib is not installed") from error
    _note_untested(version)
    return version


def jaxlib_function(name: str, program: str) -> Any:
    """Return a private name of jaxlib, which a program needs."""
    version = check_jaxlib(program)
    try:
        return private(name)
    except ImportError as error:
        raise _without(program, f"jaxlib {version}: {error}") from error


def _without(program: str, fault: str) -> PipelineError:
    releases = " to ".join(TESTED_JAXLIB)
    return PipelineError(f"{program}: {fault}; expected jaxlib {releases}; {HOW_TO_INSTALL}")


@cache
def _note_untested(version: str) -> None:
    first, last = (tuple(map(int, release.split("."))) for release in TESTED_JAXLIB)
    numbers = tuple(map(int, re.findall(r"\d+", version)))
    if not first <= numbers or numbers[: len(last)] > last:
        releases = " to ".join(TESTED_JAXLIB)
        log.info(f"note: jaxlib {version} was not tested with this project; {releases} was")
