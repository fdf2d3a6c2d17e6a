"""Retries of HTTP requests, and words for the faults of a network."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from typing import TypeVar

from requests.exceptions import ChunkedEncodingError, SSLError, Timeout
from requests.exceptions import ConnectionError as NoConnection

from common.errors import PipelineError
from common.progress import log

T = TypeVar("T")

UNREACHED = "cannot reach"
MIN_GAIN_BYTES = 2**18
# Another try may succeed: the server is busy, restarts, or waited too long for the request.
PASSING_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})


class RetryableError(Exception):
    """The attempt failed, but another one may succeed. The user sees no error yet."""

    def __init__(self, reason: str, *, retry_after_s: float | None = None, quote: str = "") -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.quote = quote  # the end of the final message


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to retry. Tests replace `sleep`, so that they need not wait."""

    attempts: int = 6  # in a row without a gain of bytes
    first_wait_s: float = 1.0  # doubled each time
    max_wait_s: float = 60.0
    max_asked_wait_s: float = 300.0  # limit for Retry-After
    sleep: Callable[[float], None] = time.sleep

    def wait_s(self, failures: int, asked_s: float | None) -> float:
        """Return the wait before the next try."""
        if asked_s is not None:
            return min(asked_s, self.max_asked_wait_s)
        return min(self.first_wait_s * 2 ** (failures - 1), self.max_wait_s)


def retry(
    attempt: Callable[[], T],
    *,
    what: str,
    policy: RetryPolicy,
    gained: Callable[[], int] = lambda: 0,
    advice: str = "check the network, then run the same command: it resumes",
) -> T:
    """Call `attempt` again after each `RetryableError`, as long as `policy` allows."""
    failures, best = 0, gained()
    while True:
        try:
            return attempt()
        except RetryableError as fault:
            n_bytes = gained()
            is_gain = n_bytes >= best + MIN_GAIN_BYTES
            failures, best = (1, n_bytes) if is_gain else (failures + 1, best)
            if failures >= policy.attempts:
                message = f"{what}: {fault}; gave up after {failures} tries; {advice}{fault.quote}"
                raise PipelineError(message) from None
            wait_s = policy.wait_s(failures, fault.retry_after_s)
            log.info(f"{what}: {fault}; next try in {wait_s:.0f} s")
            policy.sleep(wait_s)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes. Some clients hide the real error behind others."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def network_fault(error: BaseException, server: str) -> str:
    """Describe the network fault behind an error; "" if it is none.

    The text of the error is not quoted, because it may contain signed addresses.
    """
    for link in chain(error):
        if isinstance(link, SSLError) and "CERTIFICATE" in str(link):
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


def retry_after_s(header: str) -> float | None:
    """Return the seconds of a Retry-After header; None if it has no number."""
    return float(header) if re.fullmatch(r"[0-9]{1,6}", header) else None
