"""Trying again: how often, how long between tries, and what is said meanwhile."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from common.errors import PipelineError
from common.progress import log

T = TypeVar("T")


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
        gained: bytes held so far; an attempt that adds to the most ever held starts the count of
            failures anew, so that a long download over a bad line comes to its end.

    Raises:
        PipelineError: the tries are used up.
    """
    failures, best = 0, gained()
    while True:
        try:
            return attempt()
        except RetryableError as fault:
            held = gained()
            failures = 1 if held > best else failures + 1
            best = max(best, held)
            if failures >= policy.attempts:
                told = f"{what}: {fault}; gave up after {failures} tries; {advice}"
                raise PipelineError(told) from None
            wait_s = policy.wait_s(failures, fault.retry_after_s)
            log.info(f"{what}: {fault}; next try in {wait_s:.0f} s")
            policy.sleep(wait_s)
