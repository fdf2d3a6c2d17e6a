"""What of a submission's bytes a strict reader of CSV files may take otherwise than it was meant.

Both LF and CRLF end a line; anything else that this project's own reader would forgive is a fault.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from common.errors import PipelineError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LONE_RETURN = re.compile(rb"\r(?!\n)")
_PADDED_INDEX = re.compile(rb"[,;](-?0[0-9]+|-0)(?=;|$)")


def text_faults(path: Path) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with a file's bytes: row, the header being row 1, and message.

    Raises:
        PipelineError: it is no regular file, or cannot be read.
    """
    content = read_regular(path)
    if content.startswith(_BYTE_ORDER_MARK):
        yield 1, "begins with a byte order mark; expected plain UTF-8 text"
    for row, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        text = line.removesuffix(b"\r")
        if _LONE_RETURN.search(text):
            yield row, "holds a carriage return without a line feed; expected one row per line"
        elif not text.strip():
            yield row, "is blank; expected no such line"
        elif text != text.strip():
            yield row, "begins or ends with a blank; expected none"
        padded = _PADDED_INDEX.search(text)
        if padded:
            yield row, f"index '{padded[1].decode()[:40]}'; expected no leading zero or sign"


def read_regular(path: Path) -> bytes:
    """Read a file that is no pipe or device, which would be waited for.

    Raises:
        PipelineError: it is no regular file, or cannot be read.
    """
    try:
        if path.exists() and not path.is_file():
            raise PipelineError(f"{path}: is not a file; expected a submission")
        return path.read_bytes()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
