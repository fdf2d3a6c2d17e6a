"""File calls that fail in child processes, by a preloaded library (failing_calls.c)."""

import shutil
import subprocess
import sys
from errno import errorcode
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

SOURCE = Path(__file__).with_name("failing_calls.c")
needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc"
)


@cache
def _library() -> Path:
    built = Path(mkdtemp(prefix="failing-calls-")) / "failing_calls.so"
    words = ["gcc", "-shared", "-fPIC", "-O1", "-o", built, SOURCE, "-ldl"]
    subprocess.run(words, check=True)
    return built


def failing(
    call: str, number: int, part: object, *, nth: int = 1, always: bool = False
) -> dict[str, str]:
    """Return environment variables that make calls on paths with a part fail.

    Args:
        call: For example "read", see failing_calls.c.
        nth: Number of the first call that fails in a process, from 1.
    """
    assert number in errorcode
    wish = f"{call}:{number}:{nth}{'+' * always}:{part}"
    return {"LD_PRELOAD": str(_library()), "FAIL": wish}
