"""Exceptions that the user sees as one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

MAX_CHARACTERS = 3_000
# The match ends at the last @ of an address, because a password may contain @ and /.
_CREDENTIALS = re.compile(r"://\S*@")


class PipelineError(Exception):
    """The input or the environment is at fault: a bad file, a refused upload, a full disk.

    The message is one line: the place (file, key, row), the problem, the expected content and, if
    needed, the remedy. Unprintable characters are escaped, credentials in addresses are removed,
    and a long message is cut in its middle. The exit code is 1.
    """

    def __init__(self, message: str) -> None:
        line, half = escaped(hide_credentials(message)), MAX_CHARACTERS // 2
        is_short = len(line) <= MAX_CHARACTERS
        super().__init__(line if is_short else f"{line[:half]} … {line[-half:]}")


class UnreadableError(PipelineError):
    """The system cannot read a file now. It may be sound, so no command leaves it out."""


class OutOfTime(Exception):  # noqa: N818 — no error
    """The time limit has ended the work, which the same command resumes. The exit code is 0."""


class UsageError(PipelineError):
    """The command line or a recipe is wrong, or a folder is in the way. The exit code is 2."""


@contextmanager
def blame(place: object, expected: str) -> Iterator[None]:
    """Turn errors of a block that uses the values of a file into errors that name the file."""
    try:
        yield
    except (PipelineError, OSError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PipelineError(f"{place}: cannot be used: {reason}; expected {expected}") from error


def escaped(text: str) -> str:
    """Escape the characters of a text that a terminal would act on or could not show."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def hide_credentials(text: str) -> str:
    """Replace the user and the password of addresses in a text by ***."""
    return _CREDENTIALS.sub("://***@", text)
