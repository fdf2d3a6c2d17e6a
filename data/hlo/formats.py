"""Program formats that only jaxlib can parse, compressed files, and the folders of XLA's dumps.

The format is recognised without jaxlib. jaxlib is optional, and its parsers are private. So only
the tested releases are used, in a child process (`data.hlo.jaxlib_parser`).
"""

import gzip
import io
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from common.errors import PipelineError, UsageError
from common.files import open_regular
from common.settings import ROOT
from data.hlo import jaxlib_parser
from data.hlo.jaxlib_parser import HLO_TEXT, MLIR, REFUSED

TESTED_JAXLIB = ("0.10.",)
HOW_TO_INSTALL = (
    f"`make setup-collect` installs it into {ROOT / '.venv'}; into another environment, "
    f"pip install -r {ROOT / 'requirements-collect.txt'}"
)
EXPECTED = (
    "tuning data, HLO (protobuf or text), StableHLO, a jax.export artifact, or a gzip file of one"
)
HOW_TO_DUMP = 'XLA_FLAGS="--xla_dump_to=DIR --xla_dump_hlo_as_proto" writes modules'
# A module of the dataset has at most 25 MB. The limits bound the memory and time of bad files.
MAX_UNPACKED_BYTES = 1 << 30
MAX_PARSE_S = 300.0

_BLANK = rb"(?>\s+|\xef\xbb\xbf|//[^\n]*|/\*.*?\*/)*+"  # a byte order mark, and comments too
_BYTECODE = b"ML\xefR"
_JAX_EXPORT = "a jax.export artifact"
# The first format whose pattern fits the content counts. Nothing here reads those with "is".
_FORMATS = {
    MLIR: _BLANK + rb'([#!][\w.]+ = |"?(builtin\.)?module\b|func\.func)|' + _BYTECODE,
    _JAX_EXPORT: rb".{1,2}\x00\x00.*" + _BYTECODE,
    "is a protobuf as text": _BLANK + rb"(hlo|hlo_module|name|modules)\s*[:{]",
    "is compressed by zstd (unzstd unpacks it)": rb"\x28\xb5\x2f\xfd",
    "is a zip archive, as npz files are": rb"PK\x03\x04",
    # A module may begin with a computation, for example `%add (a: f32[], b: f32[]) -> f32[] {`.
    HLO_TEXT: _BLANK
    + rb"((HloModule|ENTRY)\b|%?[\w.-]+\s*(\{|\((?=[^\n]*->)[^\n]*+\n)"
    + _BLANK
    + rb"(ROOT\s+)?%?[\w.-]+\s*=)",
    "damaged, cut short or something else": b"",
}
# Starts of modules in a text. Tests of compilers separate modules by a comment.
_MODULE_START = {HLO_TEXT: rb"^HloModule\b", MLIR: rb"^module\b|^// -----[ \t]*$"}
_MODULE_NAME = {
    HLO_TEXT: rb"^[^\S\n]*HloModule\s+%?([\w.-]+)",
    MLIR: rb"^[^\S\n]*module\s+@\"?([\w.$-]+)",
}
_FUNCTION = rb"func\.func\s+(?:public\s+)?@([\w.$-]+)"
# A module in a dump, at the steps of the compiler at which layouts are not fixed or all is done.
_DUMPED = re.compile(
    r"(module_\d+\..+?)\."
    r"(\d{4}\..+\.before_layout-assignment|before_optimizations?"
    r"|(?:sm_[\d.]+_gpu_|[^.]+_)?after_optimizations?)"
    r"\.(hlo\.pb|hlo|txt)(?:\.gz)?"
)


class ModuleText(NamedTuple):
    """One module that jaxlib parses."""

    name: str  # of the module or its function; unique in the file
    form: str  # HLO_TEXT or MLIR
    content: bytes  # text or bytecode
    first_line: int = 0  # number of lines of the file before the text
    function: bytes | None = None  # the entry of an MLIR text; None for `main`

    def for_parser(self) -> bytes:
        """Return the content with a head and an entry, and with the line numbers of the file."""
        content = self.content
        if self.form == HLO_TEXT and not re.match(_BLANK + b"HloModule", content, re.DOTALL):
            content = b"HloModule module " + content
        if self.function is not None:
            content = re.sub(rb"@" + re.escape(self.function) + rb"(?![\w.$-])", b"@main", content)
        return b"\n" * self.first_line + content


def split_choice(path: Path) -> tuple[Path, str | None]:
    """Split FILE#NAME into the file and the name. The name is None if FILE is the whole path."""
    folder, mark, name = path.name.rpartition("#")
    return (path.with_name(folder), name) if mark and folder and not path.exists() else (path, None)


def choose(path: Path, names: Sequence[tuple[str, ...]], chosen: str | None) -> int:
    """Return the position of the module of a file that has a name.

    Args:
        names: All names of each module. The first is its unique name.
        chosen: A name. None if the user gave none.

    Raises:
        UsageError: Not exactly one module has the name. The message lists all.
    """
    found = [place for place, own in enumerate(names) if chosen is None or chosen in own]
    if len(found) == 1:
        return found[0]
    fault = "and none chosen" if chosen is None else f"called '{chosen}'"
    known = ", ".join(own[0] for own in names)
    raise UsageError(
        f"{path}: {len(found) or 'no'} modules {fault}; expected {path}#NAME with one of {known}"
    )


def find_dumped(folder: Path, chosen: str | None) -> Path:
    """Return a module's file of a dump: before layouts are chosen if it has one, else unoptimized.

    Args:
        folder: Folder that `--xla_dump_to` names.
        chosen: Name of the module, for example "jit_step", "module_0004" or "module_0004.jit_step".
    """
    modules: dict[str, list[tuple[int, bool, str]]] = {}
    for path in folder.iterdir():
        if match := _DUMPED.fullmatch(path.name):
            module, step, form = match.groups()
            order = ("after_opt" in step) - step[0].isdigit()
            modules.setdefault(module, []).append((order, form != "hlo.pb", path.name))
    if not modules:
        raise PipelineError(f"{folder}: a folder without modules; expected a file; {HOW_TO_DUMP}")
    names = sorted(modules)
    place = choose(folder, [(name, *name.split(".", 1)) for name in names], chosen)
    return folder / min(modules[names[place]])[2]


def read_content(path: Path) -> bytes:
    """Return the content of a file, unpacked if gzip compressed it."""
    with open_regular(path) as file:
        content = file.read()
    try:
        if content.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(MAX_UNPACKED_BYTES + 1)
            if len(content) > MAX_UNPACKED_BYTES:
                limit = f"{MAX_UNPACKED_BYTES >> 20} MiB"
                raise PipelineError(f"{path}: unpacks to over {limit}; expected {EXPECTED}")
    except (OSError, EOFError, zlib.error) as error:
        raise PipelineError(f"{path}: damaged gzip file: {error}; expected {EXPECTED}") from error
    if not content:
        raise PipelineError(f"{path}: is empty; expected {EXPECTED}")
    return content


def split_modules(path: Path, content: bytes) -> list[ModuleText]:
    """Split a file that is no protobuf into its modules.

    An MLIR module without a function `main` gives a module for each public function.
    """
    form = next(form for form, start in _FORMATS.items() if re.match(start, content, re.DOTALL))
    if form == _JAX_EXPORT:
        # In the flatbuffer, the length precedes the bytecode. Derivatives come before the function.
        start = content.rindex(_BYTECODE)
        end = start + int.from_bytes(content[start - 4 : start], "little")
        if end > len(content):
            raise PipelineError(f"{path}: a damaged jax.export artifact; expected {EXPECTED}")
        form, content = MLIR, content[start:end]
    elif form not in _MODULE_START:
        raise PipelineError(f"{path}: {form}; expected {EXPECTED}; {HOW_TO_DUMP}")
    if content.startswith(_BYTECODE):
        return [ModuleText(path.name, MLIR, content)]
    modules: dict[str, ModuleText] = {}
    for line, section in _sections(form, content.removeprefix(b"\xef\xbb\xbf")):
        named = re.search(_MODULE_NAME[form], section, re.MULTILINE)
        functions = re.findall(_FUNCTION, section) if form == MLIR else []
        for function in [None] if b"main" in functions else functions or [None]:
            name = (function or (named[1] if named else b"module")).decode(errors="replace")
            key = f"{name}_{len(modules)}" if name in modules else name
            modules[key] = ModuleText(key, form, section, line, function)
    return list(modules.values())


def _sections(form: str, content: bytes) -> list[tuple[int, bytes]]:
    """Return the modules of a text, each with the number of lines before it."""
    starts, has_module = [0], False
    for match in re.finditer(_MODULE_START[form], content, re.MULTILINE):
        is_separator = match[0].startswith(b"//")
        # Aliases and comments before a module belong to it.
        if is_separator or has_module:
            starts.append(match.start())
        has_module = not is_separator
    sections, line = [], 0
    for start, end in zip(starts, [*starts[1:], len(content)], strict=True):
        section = content[start:end]
        if not re.fullmatch(_BLANK, section, re.DOTALL):
            sections.append((line, section))
        line += section.count(b"\n")
    return sections


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
        tested = ", ".join(f"{release}x" for release in TESTED_JAXLIB)
        raise PipelineError(f"{program}: {fault}; expected {tested}; {HOW_TO_INSTALL}")
    return version
