"""The child process in which jaxlib parses a program, because some files crash or hang it.

It reads the program from standard input, and writes the serialized HloModuleProto to standard
output. If jaxlib refuses the program, the output is the reason and the exit code is REFUSED. The
exit code is MISSING if jaxlib lacks a function.
"""

import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

# The formats that jaxlib parses. The names are also in messages.
HLO_TEXT, MLIR = "HLO text", "StableHLO"
REFUSED, MISSING = 3, 4
# A constant of any size takes one line of text. Without a limit the system would run out of memory.
MAX_MEMORY_BYTES = 16 << 30
MAX_REASON = 300
# An error starts with the place in the text, for example "-:2:5: error: ..." in MLIR.
_ERROR = re.compile(r"(?:-:|was parsing )(\d+):\d+: error: (.*)")


def main() -> None:
    """Parse standard input. The argument of the process is HLO_TEXT or MLIR."""
    # jaxlib may print to standard output too.
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(ImportError, ValueError, OSError):  # not on all systems
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    content, code = sys.stdin.buffer.read(), 0
    try:
        answer = _parse(sys.argv[1], content)
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
    raise ImportError(f"has no function {name}")


def _parse(form: str, content: bytes) -> bytes:
    if form == HLO_TEXT:
        module = private("hlo_module_from_text")(content.decode(errors="replace"))
    else:
        # It reads text and bytecode of StableHLO, CHLO and MHLO, and portable artifacts (VHLO).
        module = private("mlir").mlir_module_to_xla_computation(content)
    return bytes(module.as_serialized_hlo_module_proto())


def _reason_of(message: str) -> str:
    """Return the first error of a message of many lines, in one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["no reason given"]
    first = next((line for line in lines if "error: " in line), lines[0])
    place = _ERROR.search(first)
    reason = f"line {place[1]}: {place[2]}" if place else re.sub(r"^[A-Z_]+: ", "", first)
    return reason[:MAX_REASON]


if __name__ == "__main__":
    main()
