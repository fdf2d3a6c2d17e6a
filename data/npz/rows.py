"""Read an array's rows out of an archive, some at a time, with a way back."""

from data.npz.inflate import DamagedError, Inflated, Mark


class Rows:
    """The bytes of an array in C order, in chunks of whole rows.

    Args:
        stream: stands behind the array's header.
        n_bytes: of the array.
        step: bytes of a chunk: of one row, or several; the last one may hold fewer.
    """

    def __init__(self, stream: Inflated, *, n_bytes: int, step: int) -> None:
        stream.end_part()
        self._stream, self._end, self._step = stream, stream.tell() + n_bytes, step

    @property
    def left(self) -> int:
        """Return how many bytes have not been read."""
        return self._end - self._stream.tell()

    def read(self) -> bytes:
        """Return the next chunk; nothing once all has been read.

        Raises:
            DamagedError: the stream ends too early.
        """
        wanted = min(self._step, self.left)
        content = self._stream.read(wanted)
        if len(content) < wanted:
            raise DamagedError("ends too early")
        return content

    def end_part(self) -> int:
        """Return the CRC-32 of what has been read since the last part ended, and begin another."""
        return self._stream.end_part()

    def mark(self) -> Mark:
        """End the part that is being read; return the place, for `go_back`."""
        return self._stream.mark()

    def go_back(self, mark: Mark) -> None:
        """Read on from where this reader was; any number of times."""
        self._stream.go_back(mark)
