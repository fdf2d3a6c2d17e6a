"""Send a request that must not be sent twice: a lost answer is resolved by asking, or told.

What remains possible: a server that answers HTTP 5xx although it has acted, and shows it only after
all looks of `LOOK_AFTER_S`, is sent the request again. Two versions of one content are then made.
"""

from collections.abc import Callable
from typing import TypeVar

from common.kaggle.errors import passing_fault
from common.network import UNREACHED, retry_after_s
from common.retry import RetryPolicy

T = TypeVar("T")

# Kaggle may still be at work: seconds before each look for what a lost answer was about.
LOOK_AFTER_S = (0.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # a little more than a minute in all
LONGEST_WAIT_S = 120.0  # that a server may ask for before the user is told instead
PUSH_POLICY = RetryPolicy(attempts=4, first_wait_s=2.0)


def send_once(
    send: Callable[[], T],
    arrived: Callable[[], T | None],
    *,
    what: str,
    policy: RetryPolicy,
    say: Callable[[str], None],
) -> T:
    """Send a request; send it again only where the one before is known not to have been acted on.

    A refusal for now (HTTP 429) and a server that was not reached are certain. After a server's
    fault (HTTP 5xx) Kaggle is asked for a minute, and the request is sent again if it says that
    nothing came. A dropped connection is never answered by sending again: the request may still be
    on its way.

    Args:
        send: makes the request.
        arrived: asks Kaggle what the request has made; None if nothing.
        what: start of every line said.
        policy: how often, and with which waits.
        say: told about each failure.

    Raises:
        Exception: as `send` raised last; the caller words it, and the doubt that it leaves.
    """
    failures = 0
    while True:
        try:
            return send()
        except Exception as error:
            fault = passing_fault(error)
            if fault is None:
                raise
            reason, header = fault
            certain = reason == "HTTP 429" or reason.startswith(UNREACHED)
            if not certain:
                try:
                    found = _look(arrived, policy)
                except Exception:  # Kaggle does not answer that either: the doubt stays
                    raise error from None
                if found is not None:
                    say(f"{what}: {reason}, but Kaggle has received it")
                    return found
            failures += 1
            asked_s = retry_after_s(header)
            too_long = asked_s is not None and asked_s > LONGEST_WAIT_S
            may_repeat = certain or reason.startswith("HTTP")
            if not may_repeat or too_long or failures >= policy.attempts:
                raise
            wait_s = policy.wait_s(failures, asked_s)
            say(f"{what}: {reason}; next try in {wait_s:.0f} s")
            policy.sleep(wait_s)


def _look(arrived: Callable[[], T | None], policy: RetryPolicy) -> T | None:
    """Ask several times whether a request has been acted on; None if not, the last time.

    Raises:
        Exception: the last look failed, or one that no other could mend.
    """
    last = len(LOOK_AFTER_S) - 1
    for look, pause_s in enumerate(LOOK_AFTER_S):
        policy.sleep(pause_s)
        try:
            found = arrived()
        except Exception as error:
            if look == last or passing_fault(error) is None:
                raise
        else:
            if found is not None:
                return found
    return None
