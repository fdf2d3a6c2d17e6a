"""Trying again: what of the network may mend, how often, and what is said meanwhile."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from typing import TypeVar

from requests.exceptions import ChunkedEncodingError, SSLError, Timeout
from requests.exceptions import ConnectionError as NoConnection
from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from common.errors import PipelineError
from common.progress import log

T = TypeVar("T")

UNREACHED = "cannot reach"
MIN_GAIN_BYTES = 2**18
# Answers that another try may mend: the server is busy, restarting or out of patience.
PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class RetryableError(Exception):
    """The attempt failed in a way that another one may mend: no error for the user yet."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class RetryPolicy:
    """How long to go on trying; `sleep` is a parameter so that tests need not wait."""

    attempts: int = 6  # in a row that bring nothing
    first_wait_s: float = 1.0  # doubled each time
    longest_wait_s: float = 60.0
    longest_asked_wait_s: float = 300.0  # cap of what a server may ask for
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, failures: int, asked_s: float | None) -> float:
        """Return the wait after so many failures in a row, or what the server asked for."""
        if asked_s is not None:
            return min(asked_s, self.longest_asked_wait_s)
        return min(self.first_wait_s * 2 ** (failures - 1), self.longest_wait_s)


def retry(
    attempt: Callable[[], T],
    *,
    what: str,
    policy: RetryPolicy,
    gained: Callable[[], int] = lambda: 0,
    advice: str = "check the network, then run the same command: it goes on from here",
) -> T:
    """Call `attempt` again after each `RetryableError`, as long as `policy` allows.

    Args:
        gained: Bytes that are there so far. `MIN_GAIN_BYTES` more start the count of failures
            anew, so that a long download over a bad line comes to its end.

    Raises:
        PipelineError: the tries are used up.
    """
    failures, best = 0, gained()
    while True:
        try:
            return attempt()
        except RetryableError as fault:
            held = gained()
            is_gain = held >= best + MIN_GAIN_BYTES
            failures, best = (1, held) if is_gain else (failures + 1, best)
            if failures >= policy.attempts:
                told = f"{what}: {fault}; gave up after {failures} tries; {advice}"
                raise PipelineError(told) from None
            wait_s = policy.wait_s(failures, fault.retry_after_s)
            log.info(f"{what}: {fault}; next try in {wait_s:.0f} s")
            policy.sleep(wait_s)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those it was raised from: clients hide some behind others."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def network_fault(error: BaseException, server: str) -> str:
    """Name the kind of network fault behind `error`; "" if it is of another kind.

    Nothing of the error's own text is quoted: it may hold signed addresses.
    """
    for link in chain(error):
        if isinstance(link, SSLError) and certificate_refused(link):
            return f"{UNREACHED} {server}: its certificate was not accepted"
        is_connection = isinstance(link, NoConnection | ConnectionError | ChunkedEncodingError)
        text = str(link) if is_connection else ""
        if isinstance(link, Timeout) or "timed out" in text:
            return f"{server} did not answer in time"
        if isinstance(link, JSONDecodeError):
            return f"{server}'s answer is no JSON object: it is cut short, or a proxy's page"
        if is_connection:
            if "refused" in text or "resolve" in text:
                why = "connection refused" if "refused" in text else "its name does not resolve"
                return f"{UNREACHED} {server}: {why}"
            return f"the connection to {server} was dropped"
    return ""


def certificate_refused(error: BaseException) -> bool:
    """Tell whether the server's certificate was not accepted, which no other try will mend."""
    return any(isinstance(link, SSLError) and "CERTIFICATE" in str(link) for link in chain(error))


def retry_after_s(header: str) -> float | None:
    """Read a Retry-After header, a number of seconds or a date; None if it is neither."""
    try:
        return Retry().parse_retry_after(header)
    except (InvalidHeader, ValueError, OverflowError):
        return None
