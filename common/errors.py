"""The one exception that reaches the user as a single line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

MAX_CHARACTERS = 3_000
# Of an address, up to the last @: a password may hold @ and / as well.
_CREDENTIALS = re.compile(r"://\S*@")


class PipelineError(Exception):
    """The input or the world is at fault: a bad file, a refused upload, no space left.

    The message is one line that says what is wrong, where (file, key, row), what was expected
    and, where it is not obvious, what to do. The command line prints it and exits with 1.

    Whatever of a foreign file stands in the message: what cannot be printed is escaped, and a long
    text is cut in its middle, so that the line stays a line. Credentials in addresses are left out.
    """

    def __init__(self, message: str) -> None:
        printed, half = escaped(hide_credentials(message)), MAX_CHARACTERS // 2
        is_short = len(printed) <= MAX_CHARACTERS
        super().__init__(printed if is_short else f"{printed[:half]} … {printed[-half:]}")


class OutOfTime(Exception):  # noqa: N818 — no error
    """Work stopped where it can be gone on with, since its time is over. No fault.

    The command line says so in one line and exits with 0.
    """


class UsageError(PipelineError):
    """The command was called wrongly: an unknown recipe key, a folder that is in the way.

    The command line prints it and exits with 2.
    """


@contextmanager
def blame(place: object, expected: str) -> Iterator[None]:
    """Blame a file for the errors of a block that uses the values of that file.

    Args:
        place: The file or folder, for the message.
        expected: The content that the block can use, for the message.

    Raises:
        PipelineError: The block raised an error that is neither one of ours nor of the system.
    """
    try:
        yield
    except (PipelineError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PipelineError(f"{place}: cannot be used: {reason}; expected {expected}") from error


def escaped(text: str) -> str:
    """Return `text` with escapes in place of what a terminal would act on or could not show."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def hide_credentials(text: str) -> str:
    """Return `text` with *** in place of the user and the password of addresses."""
    return _CREDENTIALS.sub("://***@", text)
