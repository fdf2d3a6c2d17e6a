"""Exceptions that the user sees as one line."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

MAX_CHARACTERS = 3_000
# The match ends at the last @ of an address, because a password may contain @ and /.
_CREDENTIALS = re.compile(r"://\S*@")
# pydantic writes for example "String should have at least 1 character".
_SHOULD = re.compile(r"^\w+ should (be|have|match) ")
_BARE_WORD, _QUOTED = re.compile(r"[\w.:+-]+"), re.compile(r"'([^']*)'")
# The expected content by kind of pydantic's errors.
_KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "a table"),
    **{"bool_type": "true or false", "string_type": "text", "too_short": "at least one entry"},
    **{"missing": "a value", "int_parsing_size": "a smaller number"},
    "extra_forbidden": "no such key",
}


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


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is spelled most like a wrong name, "" if none is alike."""
    names = {text.lower(): text for text in known}
    return next((names[near] for near in get_close_matches(name.lower(), names, 1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about a wrong name: "; did you mean NAME?", or ""."""
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


def one_of(name: str, known: Collection[str]) -> str:
    """Return the known names in a row, and the one that is spelled most like a wrong name."""
    return f"{', '.join(known)}{did_you_mean(name, known)}"


def plain_fault(fault: Mapping[str, Any]) -> str:
    """Return the problem of an entry of pydantic's `errors()` in the words of our pages."""
    kind, text, value = fault["type"], fault["msg"], fault["input"]
    if kind in ("tuple_type", "list_type"):
        is_word = isinstance(value, str) and _BARE_WORD.fullmatch(value)
        return f"expected a list, such as {f'[{value}]' if is_word else '[0, 1]'}"
    if kind in ("value_error", "json_invalid"):
        return text.removeprefix("Value error, ").replace("Invalid JSON", "not JSON")
    text = _KINDS.get(kind, _SHOULD.sub("", text))
    if kind.startswith(("greater_than", "less_than")):
        text = f"a number {text}"
    near = did_you_mean(str(value), _QUOTED.findall(text)) if kind == "literal_error" else ""
    return f"expected {text}{near}"


def escaped(text: str) -> str:
    """Escape the characters of a text that a terminal would act on or could not show."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def hide_credentials(text: str) -> str:
    """Replace the user and the password of addresses in a text by ***."""
    return _CREDENTIALS.sub("://***@", text)
