"""Files that hold a checksum of themselves, so that a bit which flips on the disk is noticed.

A file of any format is written with the text `UNSEALED` somewhere in it, as a value of its header,
footer or last key; then the zeros are replaced by the CRC-32 of all of the file as it stood. A file
without such a text, as older revisions wrote them, is taken as it is.
"""

import zlib
from pathlib import Path

from common.errors import PipelineError

SEAL_KEY = "checksum"
MARK = b"crc32:"
ZEROS = b"0" * 8
UNSEALED = (MARK + ZEROS).decode()


def checksum_of(content: bytes) -> str:
    """Return the CRC-32 of some bytes; 8 hex digits."""
    return f"{zlib.crc32(memoryview(content)):08x}"


def sealed(content: bytes) -> bytes:
    """Return `content` with its checksum in place of the zeros of `UNSEALED`."""
    start = _start(content)
    return content[:start] + _expected(content, start) + content[start + len(ZEROS) :]


def seal_file(path: Path) -> None:
    """Put the checksum of a file that was just written into it."""
    content = path.read_bytes()
    start = _start(content)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(_expected(content, start))


def check_seal(path: Path, remedy: str) -> None:
    """Compare a file with the checksum that it holds, if it holds one.

    Args:
        path: the file.
        remedy: what to do about a damaged one, in words.

    Raises:
        PipelineError: the file cannot be read, or is not as it was written.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror or error}") from error
    start = _start(content)
    if start >= len(MARK) and content[start : start + len(ZEROS)] != _expected(content, start):
        raise PipelineError(f"{path}: damaged: it is not as it was written; {remedy}")


def _start(content: bytes) -> int:
    """Return where the digits begin; less than the mark's length if there is no mark."""
    return content.rfind(MARK) + len(MARK)


def _expected(content: bytes, start: int) -> bytes:
    view = memoryview(content)
    checksum = zlib.crc32(view[:start])
    checksum = zlib.crc32(ZEROS, checksum)
    return f"{zlib.crc32(view[start + len(ZEROS) :], checksum):08x}".encode()
