"""The child process in which jaxlib parses a program, because some files crash or hang it.

It reads the program from standard input, and writes the serialized HloModuleProto to standard
output. If jaxlib refuses the program, the output is the reason and the exit code is REFUSED.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

# The formats that are parsed. The names are also in messages.
HLO_TEXT, MLIR, EXPORT = "HLO text", "StableHLO", "a jax.export artifact"
# Bytecode is written as text, because its functions have to be renamed.
BYTECODE = "StableHLO bytecode"
REFUSED = 3
# A constant of any size takes one line of text. Without a limit the system would run out of memory.
MAX_MEMORY_BYTES = 16 << 30
MAX_REASON = 300
# An error starts with the place in the text, for example "-:2:5: error: ..." in MLIR.
_ERROR = re.compile(r"(?:-:|was parsing )(\d+):\d+: error: (.*)")

# The forms of today, and patterns of those of printers of 2018 to 2023. Attributes that changed no
# result are left out. VALUE and OPERANDS stand for the patterns below.
OLD_PRINTERS = Path(__file__).with_name("old_printers.tsv")
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_BRACES = rb"\{[^{}]*+\}"
for _ in range(2):
    _BRACES = rb"\{(?:[^{}\"]|" + _STRING + rb"|" + _BRACES + rb")*+\}"
_OPERANDS = rb"(\((?:[^()]|\((?:[^()]|\([^()]*+\))*+\))*+\))"
_WORD = rb"[%\w.<=-]*+(?:\[[^\]\n]*+\])?+(?:" + _BRACES + rb")?+"
_VALUE = rb"(?:" + _STRING + rb"|" + _OPERANDS + rb"|" + _WORD + rb")"


def main() -> None:
    """Parse standard input. The argument of the process is a format."""
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
        answer, code = _reason_of(str(error)).encode(), REFUSED
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
    parse = private("hlo_module_from_text")
    try:
        module = parse(content.decode(errors="replace"))
    except Exception:
        module = parse(_as_today(content).decode(errors="replace"))
    return bytes(module.as_serialized_hlo_module_proto())


def _parse_mlir(content: bytes) -> bytes:
    # It reads text and bytecode of StableHLO, CHLO and MHLO, and portable artifacts (VHLO).
    module = private("mlir").mlir_module_to_xla_computation(content)
    return bytes(module.as_serialized_hlo_module_proto())


def _parse_export(content: bytes) -> bytes:
    """Parse a `jax.export` artifact with one symbolic size. Its value is in a line before it."""
    import jax
    from jax import export

    batch, _, content = content.partition(b"\n")
    exported = export.deserialize(bytearray(content))
    arrays = exported.in_avals
    sizes = [size for array in arrays for size in array.shape if not isinstance(size, int)]
    names = sorted({name for size in sizes for name in size._get_vars()})
    if len(names) != 1:
        texts = f"{len(names)} symbolic sizes ({', '.join(names)})" if names else "fixed sizes"
        raise ValueError(f"has {texts}; --batch N is for one symbolic size")
    values = {size: size._evaluate({names[0]: int(batch)}) for size in sizes}
    leaves = [
        jax.ShapeDtypeStruct([values.get(size, size) for size in array.shape], array.dtype)
        for array in arrays
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


def _as_today(content: bytes) -> bytes:
    """Replace the forms of old printers, and keep the number of lines."""
    for line in OLD_PRINTERS.read_bytes().splitlines():
        today, old = line.split(b"\t")

        def new(match: re.Match[bytes], today: bytes = today) -> bytes:
            text = match.expand(today)
            return text + b"\n" * (match[0].count(b"\n") - text.count(b"\n"))

        pattern = old.replace(b"VALUE", _VALUE).replace(b"OPERANDS", _OPERANDS)
        content = re.sub(pattern, new, content)
    return content


def _reason_of(message: str) -> str:
    """Return the first error of a message of many lines, in one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    first = next((line for line in lines if "error: " in line), lines[0])
    place = _ERROR.search(first)
    reason = f"line {place[1]}: {place[2]}" if place else re.sub(r"^[A-Z_]+: ", "", first)
    return reason[:MAX_REASON]


if __name__ == "__main__":
    main()
