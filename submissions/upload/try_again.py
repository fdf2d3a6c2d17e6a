"""Whether a request to Kaggle is worth another try, and the wait before it."""

from collections.abc import Callable
from typing import TypeVar

from common.errors import PipelineError
from common.retry import RetryPolicy
from submissions.upload.faults import ClientError

T = TypeVar("T")


def read_patiently(
    read: Callable[[], T],
    *,
    what: str,
    policy: RetryPolicy,
    say: Callable[[str], None],
    added: str = "",
) -> T:
    """Call what only reads until it succeeds, as long as another try may help.

    Args:
        read: raises ClientError.
        what: start of every line said.
        policy: how often, and with which waits.
        say: told about each failure.
        added: what the error's line says besides.

    Raises:
        PipelineError: another try would not help, or the tries are used up.
    """
    failures = 0
    while True:
        try:
            return read()
        except ClientError as fault:
            failures += 1
            wait_or_raise(fault, failures, what=what, policy=policy, say=say, added=added)


def wait_or_raise(
    fault: ClientError,
    failures: int,
    *,
    what: str,
    policy: RetryPolicy,
    say: Callable[[str], None],
    added: str = "",
) -> None:
    """Wait for the next try.

    Args:
        fault: of the last one.
        failures: how many there were.
        what, policy, say, added: see `read_patiently`.

    Raises:
        PipelineError: another try would not help or not be safe, or the tries are used up.
    """
    outcome = fault.outcome
    asked_s = outcome.retry_after_s
    too_long = asked_s is not None and asked_s > policy.longest_asked_wait_s
    if not outcome.try_again or too_long or failures >= policy.attempts:
        tries = f"gave up after {failures} tries" if failures > 1 else ""
        raise PipelineError("; ".join(filter(None, (str(fault), tries, added)))) from None
    wait_s = policy.wait_s(failures, asked_s)
    say(f"{what}: {outcome.reason}; next try in {wait_s:.0f} s")
    policy.sleep(wait_s)
