"""Read an array's rows out of an archive, some at a time, with a way back."""

from dataclasses import dataclass

from data.inflate import DamagedError, Inflated, Mark


@dataclass(frozen=True)
class Place:
    """Where a reader was.

    Attributes:
        mark: of the stream.
        left: bytes behind it.
    """

    mark: Mark
    left: int


class Rows:
    """The bytes of an array in C order, in chunks of whole rows.

    Attributes:
        left: how many bytes have not been read.

    Args:
        stream: stands behind the array's header.
        n_bytes: of the array.
        step: bytes of a chunk: of one row, or several; the last one may hold fewer.
    """

    def __init__(self, stream: Inflated, *, n_bytes: int, step: int) -> None:
        stream.end_part()
        self._stream, self.left, self._step = stream, n_bytes, step

    def read(self) -> bytes:
        """Return the next chunk; nothing once all has been read.

        Raises:
            DamagedError: the stream ends too early.
        """
        wanted = min(self._step, self.left)
        content = self._stream.read(wanted)
        if len(content) < wanted:
            raise DamagedError("ends too early")
        self.left -= wanted
        return content

    def end_part(self) -> int:
        """Return the CRC-32 of what has been read since the last part ended, and begin another."""
        return self._stream.end_part()

    def place(self) -> Place:
        """End the part that is being read; return what `go_back` takes."""
        return Place(self._stream.mark(), self.left)

    def go_back(self, place: Place) -> None:
        """Read on from where this reader was; any number of times."""
        self._stream.go_back(place.mark)
        self.left = place.left
