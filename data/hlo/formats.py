"""Recognise texts of programs by their first bytes, and split them into modules.

Only jaxlib can parse the modules (data.hlo.parse), but this module needs no jaxlib.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from common.errors import PipelineError, UsageError
from data.hlo.files import EXPECTED, HOW_TO_DUMP
from data.hlo.jaxlib_parser import EXPORT, HLO_TEXT, MLIR

_BLANK = rb"(?>\s+|\xef\xbb\xbf|//[^\n]*|/\*.*?\*/)*+"  # a byte order mark, and comments too
_BYTECODE = b"ML\xefR"
# The first format whose pattern fits the content counts. Nothing here reads those with "is".
_FORMATS = {
    MLIR: _BLANK + rb'([#!][\w.]+ = |"?(builtin\.)?module\b|func\.func)|' + _BYTECODE,
    EXPORT: rb".{1,2}\x00\x00.*" + _BYTECODE,
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
_MODULE_START = {HLO_TEXT: rb"^[^\S\n]*HloModule\b", MLIR: rb"^module\b|^// -----[ \t]*$"}
_MODULE_NAME = {
    HLO_TEXT: rb"^[^\S\n]*(?:HloModule|ENTRY)\s+%?([\w.-]+)",
    MLIR: rb"^[^\S\n]*module\s+@\"?([\w.$-]+)",
}
# The starts of computations. The first group is of the entry.
_COMPUTATION = rb"^[^\S\n]*(?:(ENTRY)\b|%?[\w.-]+[^\S\n]*(?:\{|\((?=[^\n]*->)))"
_FUNCTION = rb"func\.func\s+(?:public\s+)?@([\w.$-]+)"


class ModuleText(NamedTuple):
    """One module that jaxlib parses."""

    name: str  # of the module or its function; unique in the file
    form: str  # HLO_TEXT, MLIR or EXPORT
    content: bytes  # text or bytecode, or a batch size and an artifact
    first_line: int = 0  # number of lines of the file before the text
    function: bytes | None = None  # the entry of an MLIR text; None for `main`

    def for_parser(self) -> bytes:
        """Return the content with a head and an entry, and with the line numbers of the file."""
        content = self.content
        if self.form == HLO_TEXT and not re.match(_BLANK + b"HloModule", content, re.DOTALL):
            content = f"HloModule {self.name} ".encode() + content
        if self.function is not None:
            content = re.sub(rb"@" + re.escape(self.function) + rb"(?![\w.$-])", b"@main", content)
        return b"\n" * self.first_line + content


def lacks_main(content: bytes) -> bool:
    """Return whether a file is MLIR bytecode without a function `main`."""
    return content.startswith(_BYTECODE) and b"\0main\0" not in content


def split_modules(path: Path, content: bytes, batch: int | None = None) -> list[ModuleText]:
    """Split a file that is no protobuf into its modules.

    An MLIR module without a function `main` gives a module for each public function.
    """
    form = next(form for form, start in _FORMATS.items() if re.match(start, content, re.DOTALL))
    if batch is not None:
        if form != EXPORT:
            raise UsageError(f"--batch {batch}: {path} is no jax.export artifact; leave it out")
        return [ModuleText(path.name, form, b"%d\n" % batch + content)]
    if form == EXPORT:
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
        title = re.search(_MODULE_NAME[form], section, re.MULTILINE)
        functions = re.findall(_FUNCTION, section) if form == MLIR else []
        for function in [None] if b"main" in functions else functions or [None]:
            name = (function or (title[1] if title else b"module")).decode(errors="replace")
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
    if form == HLO_TEXT:
        starts = sorted({*starts, *_starts_after_entries(content, starts)})
    sections, line = [], 0
    for start, end in zip(starts, [*starts[1:], len(content)], strict=True):
        section = content[start:end]
        if not re.fullmatch(_BLANK, section, re.DOTALL):
            sections.append((line, section))
        line += section.count(b"\n")
    return sections


def _starts_after_entries(content: bytes, starts: list[int]) -> Iterator[int]:
    """Yield the starts of modules without a header. Each has one entry, as its last computation."""
    pattern = re.compile(_COMPUTATION, re.MULTILINE)
    for start, end in zip(starts, [*starts[1:], len(content)], strict=True):
        heads = [*pattern.finditer(content, start, end)]
        entries = [number for number, head in enumerate(heads) if head[1]]
        yield from (heads[number + 1].start() for number in entries[:-1])
