"""Parse a module with jaxlib, in a child process.

jaxlib is optional, and its parsers are private. So only the tested releases are used.
"""

import subprocess
import sys
from contextlib import suppress
from importlib import metadata

from common.errors import PipelineError
from common.settings import IS_INSTALLED, ROOT, how_to_install
from data.hlo import jaxlib_parser
from data.hlo.files import HOW_TO_DUMP
from data.hlo.formats import ModuleText
from data.hlo.jaxlib_parser import REFUSED

TESTED_JAXLIB = ("0.10.",)
HOW_TO_INSTALL = (
    how_to_install("jax")
    if IS_INSTALLED
    else (
        f"`make setup-collect` installs it into {ROOT / '.venv'}; into another environment, "
        f"pip install -r {ROOT / 'requirements-collect.txt'}"
    )
)
MAX_PARSE_S = 300.0


def parse_module(module: ModuleText, source: str) -> bytes:
    """Parse a module with jaxlib in a child process."""
    version = check_jaxlib(f"{source}: is {module.form}")
    command = [sys.executable, "-P", jaxlib_parser.__file__, module.form]
    content, reason = module.for_parser(), f"not done after {MAX_PARSE_S:g} s"
    with suppress(subprocess.TimeoutExpired):
        child = subprocess.run(  # noqa: S603
            command, input=content, capture_output=True, timeout=MAX_PARSE_S, check=False
        )
        if child.returncode == 0:
            return child.stdout
        reason = f"the parser crashed ({child.returncode})"
        if child.returncode == REFUSED:
            reason = child.stdout.decode(errors="replace")
    fault = f"jaxlib {version} cannot parse it as {module.form}: {reason}"
    raise PipelineError(f"{source}: {fault}; expected a valid module; {HOW_TO_DUMP}")


def check_jaxlib(program: str) -> str:
    """Check that jaxlib is installed and that its private functions were tested."""
    version = ""
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("jaxlib")
    if not version.startswith(TESTED_JAXLIB):
        fault = f"jaxlib {version} was not tested" if version else "jaxlib is not installed"
        releases = ", ".join(f"{prefix}x" for prefix in TESTED_JAXLIB)
        raise PipelineError(f"{program}: {fault}; expected {releases}; {HOW_TO_INSTALL}")
    return version
