"""The child process in which jaxlib parses a program, because some files crash or hang it.

It reads the program from standard input. It writes the attributes that jaxlib does not know, in one
line, and the serialized HloModuleProto to standard output. If jaxlib refuses the program, the
output is the reason and the exit code is REFUSED. The exit code is MISSING if jaxlib lacks a
function.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

# The formats that are parsed. The names are also in messages.
HLO_TEXT, MLIR, EXPORT = "HLO text", "StableHLO", "a jax.export artifact"
# Bytecode is written as text, because its functions have to be renamed.
BYTECODE = "StableHLO bytecode"
REFUSED, MISSING = 3, 4
# A constant of any size takes one line of text. Without a limit the system would run out of memory.
MAX_MEMORY_BYTES = 16 << 30
MAX_REASON = 300
# An old printer has few attributes that the parser does not know. Each needs another parse.
MAX_REPAIRS = 50
MAX_INSTRUCTION_BYTES = 1 << 16
# An error starts with the place in the text, for example "-:2:5: error: ..." in MLIR.
_ERROR = re.compile(r"(?:-:|was parsing )(\d+):\d+: error: (.*)")
_UNKNOWN = re.compile(r'was parsing (\d+):(\d+): error: unexpected attribute "([\w-]+)"(.*)')
_LAST_OPCODE = re.compile(rb".*\s([a-z][\w-]*)\(", re.DOTALL)

_STRING = rb'"(?:[^"\\]|\\.)*+"'
_BRACES = rb"\{[^{}]*+\}"
for _ in range(3):
    _BRACES = rb"\{(?:[^{}\"]|" + _STRING + rb"|" + _BRACES + rb")*+\}"
_OPERANDS = rb"\(((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+)\)"
_WORD = rb"[%\w.<=-]*+(?:\[[^\]\n]*+\])?+(?:" + _BRACES + rb")?+"
_VALUE = rb"=(?:" + _STRING + rb"|" + _OPERANDS + rb"|" + _WORD + rb")"
_BLANK_BEFORE = rb"(?:,[^\S\n]*+|(?<![^\S\n])[^\S\n]++|(?<=\{))"
_DIRECTIONS = {
    b"less-than": b"LT",
    b"less-than-or-equal-to": b"LE",
    b"greater-than": b"GT",
    b"greater-than-or-equal-to": b"GE",
    b"equal-to": b"EQ",
    b"not-equal-to": b"NE",
}
# Forms of the printers of 2018 to 2023, and those of today. Aliases of the entry are not read.
_SPELLINGS = (
    (rb",\s*api_version=API_VERSION_UNSPECIFIED\b", b""),
    (rb",\s*input_output_alias" + _VALUE, b""),
    (rb"(?<=\s)cross-replica-sum(?=\()", b"all-reduce"),
    (rb"(?<=\s)generate-token(?=\()", b"after-all"),
    (rb"(?<=\s)iota\(\)(?!\s*+,\s*+iota_dimension)", b"iota(), iota_dimension=0"),
    (rb"\bconstant\(\s*+[a-z]\w*+\[[\d,]*+\](?:\{[\d,]*+\})?+\s++", b"constant("),
    (rb"\bconstant\(\s*+\([a-z][\w\[\]{}, ]*+\)\s*+\(", b"constant(("),
    (rb"\bf8e4m3b11(?=\[)", b"f8e4m3b11fnuz"),
    (rb"\ball_reduce_id(?==)", b"channel_id"),
    (rb"\bopaque(?==\")", b"backend_config"),
    (rb"\boutput_window_dims(?==)", b"offset_dims"),
    (rb"\belided_window_dims(?==)", b"collapsed_slice_dims"),
    (rb"\bgather_dims_to_operand_dims(?==)", b"start_index_map"),
    (rb"\bwindow_bounds(?==)", b"slice_sizes"),
    *(
        (rb"(?<=\s)" + opcode + _OPERANDS, rb"compare(\1), direction=" + direction)
        for opcode, direction in _DIRECTIONS.items()
    ),
)


def main() -> None:
    """Parse standard input. The arguments are a format, and the batch size of an artifact."""
    # jaxlib may print to standard output too.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(ImportError, ValueError, OSError):  # not on all systems
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    content, code = sys.stdin.buffer.read(), 0
    try:
        answer = _PARSERS[sys.argv[1]](content)
    except Exception as error:
        code = MISSING if isinstance(error, ImportError) else REFUSED
        answer = _reason_of(str(error)).encode()
    output.write(answer)
    output.flush()
    # Without this, the cleaning up of a half-made module may crash.
    os._exit(code)


def private(name: str) -> Any:
    """Return a private name of jaxlib. Releases before 0.10.2 have all of them in `_jax`."""
    for module in ("_hlo", "_jax"):
        with suppress(ModuleNotFoundError, AttributeError):
            return getattr(import_module(f"jaxlib.{module}"), name)
    raise ImportError(f"no function {name}")


def _parse_hlo(content: bytes) -> bytes:
    """Parse HLO text. If the parser refuses it, the forms of old printers are replaced."""
    parse = private("hlo_module_from_text")
    with suppress(Exception):
        return _answer(parse(content.decode(errors="replace")))
    for spelling, today in _SPELLINGS:
        content = _replace(spelling, today, content)
    unknown, reason = list[str](), ""
    for _ in range(MAX_REPAIRS):
        try:
            return _answer(parse(content.decode(errors="replace")), unknown)
        except Exception as error:
            reason, refused = str(error), content
        if attribute := _UNKNOWN.search(reason):
            content = _without_attribute(content, attribute)
            # No reader needs more of the metadata.
            unknown += [attribute[3]] * (not _is_metadata(attribute))
        if content == refused:
            break
    raise ValueError(reason)


def _parse_mlir(content: bytes) -> bytes:
    # It reads text and bytecode of StableHLO, CHLO and MHLO, and portable artifacts (VHLO).
    return _answer(private("mlir").mlir_module_to_xla_computation(content))


def _parse_export(content: bytes) -> bytes:
    """Parse a `jax.export` artifact with one symbolic size, which gets the batch size."""
    import jax
    from jax import export

    exported = export.deserialize(bytearray(content))
    sizes = {
        size for array in exported.in_avals for size in array.shape if not isinstance(size, int)
    }
    names = sorted({name for size in sizes for name in size._get_vars()})
    if len(names) != 1:
        sizes_text = f"symbolic sizes {', '.join(names)}" if names else "no symbolic size"
        raise ValueError(f"has {sizes_text}; expected one that --batch sets")
    values = {names[0]: int(sys.argv[2])}
    shapes = [
        [size if isinstance(size, int) else size._evaluate(values) for size in array.shape]
        for array in exported.in_avals
    ]
    leaves = [
        jax.ShapeDtypeStruct(shape, array.dtype)
        for shape, array in zip(shapes, exported.in_avals, strict=True)
    ]
    arguments, keywords = jax.tree.unflatten(exported.in_tree, leaves)
    traced = jax.jit(exported.call).trace(*arguments, **keywords)
    text = traced.lower(lowering_platforms=exported.platforms[:1]).as_text()
    return _parse_mlir(private("mlir").refine_polymorphic_shapes(text.encode(), True, True))


def _text_of_bytecode(content: bytes) -> bytes:
    from jax.interpreters.mlir import make_ir_context
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with make_ir_context() as context:
        try:
            module = stablehlo.deserialize_portable_artifact(context, content)
        except Exception:
            module = ir.Module.parse(content)
        return str(module).encode()


_PARSERS: Mapping[str, Callable[[bytes], bytes]] = {
    HLO_TEXT: _parse_hlo,
    MLIR: _parse_mlir,
    EXPORT: _parse_export,
    BYTECODE: _text_of_bytecode,
}


def _answer(module: Any, unknown: Iterable[str] = ()) -> bytes:
    names = ", ".join(sorted(set(unknown))).encode()
    return names + b"\n" + bytes(module.as_serialized_hlo_module_proto())


def _replace(pattern: bytes, today: bytes, content: bytes) -> bytes:
    """Replace a pattern, and keep the number of lines."""

    def new(match: re.Match[bytes]) -> bytes:
        text = match.expand(today)
        return text + b"\n" * (match[0].count(b"\n") - text.count(b"\n"))

    return re.sub(pattern, new, content)


def _is_metadata(attribute: re.Match[str]) -> bool:
    return re.search(r"\bop_name\b", attribute[4]) is not None


def _without_attribute(content: bytes, attribute: re.Match[str]) -> bytes:
    """Leave an attribute out at its place, and on all lines with the same operation."""
    line, column, name = int(attribute[1]), int(attribute[2]), attribute[3].encode()
    before_line = b"\n".join([*content.split(b"\n")[: line - 1], b""])
    # In the first line, the column is that of the space before the name.
    start = max(content.find(name, len(before_line) + column - 1), 0)
    head, value = content[:start].rstrip(), re.compile(name + _VALUE).match(content, start)
    if value is None:
        return content
    n_lines = content.count(b"\n", len(head), value.end())
    content = head.removesuffix(b",") + b"\n" * n_lines + content[value.end() :]
    opcode = _LAST_OPCODE.match(head[-MAX_INSTRUCTION_BYTES:])
    if _is_metadata(attribute):
        part = name
    elif opcode:
        part = b" " + opcode[1] + b"("
    else:
        return content
    pattern = re.compile(_BLANK_BEFORE + name + _VALUE)
    lines = (pattern.sub(b"", text) if part in text else text for text in content.split(b"\n"))
    return b"\n".join(lines)


def _reason_of(message: str) -> str:
    """Return the first error of a message of many lines, in one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    first = next((line for line in lines if "error: " in line), lines[0])
    place = _ERROR.search(first)
    reason = f"line {place[1]}: {place[2]}" if place else re.sub(r"^[A-Z_]+: ", "", first)
    return reason[:MAX_REASON]


if __name__ == "__main__":
    main()
