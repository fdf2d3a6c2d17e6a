"""Read one member of an archive as a stream; its end and checksum are verified at the end.

zlib-ng inflates about twice as fast as zlib, which takes its place where it is not installed.
"""

import importlib
import zlib
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import IO, Any

from data.npz import crc32
from data.npz.zip_index import Member


def _fastest_inflater() -> ModuleType:
    """Return zlib-ng's module, which is used like zlib's, or zlib."""
    return importlib.import_module("zlib_ng.zlib_ng") if find_spec("zlib_ng") else zlib


INFLATER = _fastest_inflater()
InflateError: type[Exception] = INFLATER.error
PACKED_CHUNK_BYTES = 1 << 17


class DamagedError(Exception):
    """A member's packed bytes do not hold what the index says of them."""


@dataclass(frozen=True)
class Mark:
    """Where a stream was; `Inflated.go_back` takes it there."""

    packed_read: int
    position: int
    checksum: int
    inflate: Any


class Inflated:
    """The bytes of one member, from its start to its end.

    Args:
        raw: the archive; several streams may share it.
        member: which bytes.
    """

    def __init__(self, raw: IO[bytes], member: Member) -> None:
        self._raw = raw
        self._member = member
        self._packed_read = 0
        self._position = 0
        self._checksum = self._part_checksum = self._part_bytes = 0
        self._inflate = INFLATER.decompressobj(-zlib.MAX_WBITS) if member.is_deflated else None

    def tell(self) -> int:
        """Return how many bytes have been read."""
        return self._position

    def read(self, n_bytes: int = -1, /) -> bytes:
        """Read `n_bytes`, fewer only at the member's end; all that is left where it is negative.

        Raises:
            DamagedError: the packed bytes are no deflate stream, or they end too early.
        """
        content = self._content(n_bytes)
        self._part_checksum = INFLATER.crc32(content, self._part_checksum)
        self._part_bytes += len(content)
        return content

    def end_part(self) -> int:
        """Return the CRC-32 of what has been read since the last part ended, and begin another."""
        ended = self._part_checksum
        self._checksum = crc32.combined(self._checksum, ended, self._part_bytes)
        self._part_checksum = self._part_bytes = 0
        return ended

    def mark(self) -> Mark:
        """End the part that is being read; return the place, for `go_back`."""
        self.end_part()
        inflate = self._inflate and self._inflate.copy()
        return Mark(self._packed_read, self._position, self._checksum, inflate)

    def go_back(self, mark: Mark) -> None:
        """Read on from a marked place of this very stream."""
        self._packed_read, self._position = mark.packed_read, mark.position
        self._checksum, self._part_checksum, self._part_bytes = mark.checksum, 0, 0
        self._inflate = mark.inflate and mark.inflate.copy()

    def _content(self, n_bytes: int) -> bytes:
        pieces = []
        n_bytes = n_bytes if n_bytes >= 0 else self._member.n_bytes - self._position
        while n_bytes:
            piece = self._some(n_bytes)
            if not piece:
                break
            n_bytes -= len(piece)
            pieces.append(piece)
        content = b"".join(pieces)
        self._position += len(content)
        return content

    def finish(self) -> None:
        """Check that the member ends here, and that all its bytes are those once written.

        Raises:
            DamagedError: more bytes follow, packed or not, or the checksum is another.
        """
        if self.read(1):
            raise DamagedError("holds more bytes than its shape says")
        inflate, left = self._inflate, self._member.packed_bytes - self._packed_read
        if left or (inflate is not None and (not inflate.eof or inflate.unused_data)):
            raise DamagedError("its packed bytes do not end where the index says")
        self.end_part()
        if self._position != self._member.n_bytes or self._checksum != self._member.checksum:
            raise DamagedError("its checksum is wrong")

    def _some(self, at_most: int) -> bytes:
        """Return between one and `at_most` bytes; none at the end."""
        if self._inflate is None:
            return self._packed(at_most)
        while not self._inflate.eof:
            packed = self._inflate.unconsumed_tail or self._packed(PACKED_CHUNK_BYTES)
            try:
                piece = self._inflate.decompress(packed, at_most)
            except InflateError as error:
                raise DamagedError(str(error)) from error
            if piece or not packed:
                return piece
        return b""

    def _packed(self, at_most: int) -> bytes:
        n_bytes = min(at_most, self._member.packed_bytes - self._packed_read)
        self._raw.seek(self._member.data_start + self._packed_read)
        content = self._raw.read(n_bytes)
        if len(content) < n_bytes:
            raise DamagedError("the file ends within it")
        self._packed_read += n_bytes
        return content
